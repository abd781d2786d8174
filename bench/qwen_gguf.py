"""Writes a GGUF of the shape of Qwen2.5-0.5B with random weights in F16 and a vocabulary of its
size, for measurements of speed and opening time: write(path)."""
import random
import struct

VOCABULARY, LAYERS, DIM, MLP, HEADS, KV_HEADS, HEAD = 151936, 24, 896, 4864, 14, 2, 64
F32, F16 = 0, 1
U32, FLOAT, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def text(word):
    data = word.encode()
    return struct.pack('<Q', len(data)) + data


def vocabulary():
    """Byte tokens, then merges of two and three of them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    pairs = [(a, b) for a in letters for b in letters]
    special = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
    count = VOCABULARY - len(letters) - len(pairs) - len(special)
    triples = [(a + b, c) for a, b in pairs for c in letters[:2]][:count]
    merges = pairs + triples
    return letters + [a + b for a, b in merges] + special, [f'{a} {b}' for a, b in merges]


def settings():
    tokens, merges = vocabulary()
    types = [1] * (len(tokens) - 3) + [3] * 3

    def key(name, kind, value):
        return text(name) + struct.pack('<I', kind) + value

    def array(kind, count, data):
        return struct.pack('<IQ', kind, count) + data

    numbers = {'context_length': 2048, 'embedding_length': DIM, 'block_count': LAYERS, 'feed_forward_length': MLP,
               'attention.head_count': HEADS, 'attention.head_count_kv': KV_HEADS}
    return [key('general.architecture', STRING, text('qwen2')),
            *[key(f'qwen2.{name}', U32, struct.pack('<I', value)) for name, value in numbers.items()],
            key('qwen2.rope.freq_base', FLOAT, struct.pack('<f', 1e6)),
            key('qwen2.attention.layer_norm_rms_epsilon', FLOAT, struct.pack('<f', 1e-6)),
            key('tokenizer.ggml.model', STRING, text('gpt2')),
            key('tokenizer.ggml.pre', STRING, text('qwen2')),
            key('tokenizer.ggml.tokens', ARRAY, array(STRING, len(tokens), b''.join(map(text, tokens)))),
            key('tokenizer.ggml.token_type', ARRAY, array(I32, len(types), struct.pack(f'<{len(types)}i', *types))),
            key('tokenizer.ggml.merges', ARRAY, array(STRING, len(merges), b''.join(map(text, merges)))),
            key('tokenizer.ggml.bos_token_id', U32, struct.pack('<I', VOCABULARY - 3)),
            key('tokenizer.ggml.eos_token_id', U32, struct.pack('<I', VOCABULARY - 1))]


def tensors():
    """(name, rows or 0 for a vector, columns)"""
    yield 'token_embd.weight', VOCABULARY, DIM
    for layer in range(LAYERS):
        for name, rows, cols in (('attn_norm', 0, DIM), ('attn_q', DIM, DIM), ('attn_k', KV_HEADS * HEAD, DIM),
                                 ('attn_v', KV_HEADS * HEAD, DIM), ('attn_output', DIM, HEADS * HEAD), ('ffn_norm', 0, DIM),
                                 ('ffn_gate', MLP, DIM), ('ffn_up', MLP, DIM), ('ffn_down', DIM, MLP)):
            yield f'blk.{layer}.{name}.weight', rows, cols
            if name in ('attn_q', 'attn_k', 'attn_v'):
                yield f'blk.{layer}.{name}.bias', 0, rows
    yield 'output_norm.weight', 0, DIM


def write(path):
    random.seed(1)
    # One million numbers, repeated: the values do not matter.
    some = struct.pack('<1048576e', *(random.gauss(0, 0.02) for _ in range(1 << 20)))
    keys, shapes = settings(), list(tensors())
    with open(path, 'wb') as file:
        file.write(b'GGUF' + struct.pack('<Iqq', 3, len(shapes), len(keys)) + b''.join(keys))
        at = 0
        for name, rows, cols in shapes:
            dims = (cols, rows) if rows else (cols,)
            file.write(text(name) + struct.pack(f'<I{len(dims)}qIQ', len(dims), *dims, F16 if rows else F32, at))
            at += (max(rows, 1) * cols * (2 if rows else 4) + 31) // 32 * 32
        file.write(bytes(-file.tell() % 32))
        for _, rows, cols in shapes:
            if not rows:
                file.write(struct.pack(f'<{cols}f', *[1.0] * cols) + bytes(-4 * cols % 32))
                continue
            left = rows * cols * 2
            while left > 0:
                left -= file.write(some[:left])
            file.write(bytes(-file.tell() % 32))
