#include "formats/int8_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/rng.h"
#include "config/builder.h"
#include "formats/python.h"
#include "pack/pack_weights.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tensor/tensor.h"

namespace thimble::int8_state_test {
namespace {

// One matrix of the MLP and the embedding are large enough to be quantized.
Config small_golf(const char* layers = "layers=2") {
  ConfigBuilder settings;
  settings.preset("golf-mlx");
  for (const char* setting :
       {"vocab_size=1040", "context=16", layers, "dim=64", "heads=2", "kv_heads=1", "mlp_hidden=1056"})
    settings.set(setting);
  return settings.resolve();
}

const std::vector<std::string> kControl = {"attn_scale", "mlp_scale", "resid_mix", "q_gain", "skip_weight"};

class Int8State : public testing::TestWithParam<PickledBy> {
 protected:
  Int8State() : weights_(static_cast<std::size_t>(table_.block_size())) {
    initialize(table_, 7, weights_);
    Rng rng(1);
    for (const Param& param : table_.all())
      for (std::int64_t i = 0; i < param.count(); ++i)
        weights_[static_cast<std::size_t>(param.offset + i)] += 0.1f * rng.uniform();
    tensors_ = quantize_int8_state(table_, weights_, kControl, stats_);
  }

  Config config_ = small_golf();
  ParamTable table_{config_.model};
  std::vector<float> weights_;
  Int8Stats stats_;
  std::vector<PackedTensor> tensors_;
  TempFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(By, Int8State, testing::Values(PickledBy::numpy, PickledBy::torch),
                         [](const auto& info) { return info.param == PickledBy::numpy ? "numpy" : "torch"; });

TEST_P(Int8State, RoundTripsExactlyThroughDisk) {
  const auto file = folder_.write("model.int8.ptz", int8_ptz(int8_state(table_, tensors_, GetParam())));
  EXPECT_EQ(open_int8_ptz(file, table_), tensors_);
  const ModelFile model = open_int8_state(file, config_);
  EXPECT_EQ(model.weights, unpack_weights(table_, tensors_));
  const Param& embedding = *table_.find("tok_emb.weight");
  for (std::int64_t i = 0; i < embedding.count(); ++i) {
    const float weight = model.weights[static_cast<std::size_t>(embedding.offset + i)];
    ASSERT_EQ(weight, to_f32(to_bf16(weight)));
  }
}

// Loads the file with Python's pickle and stand-ins for the classes of numpy and torch.
constexpr const char* kReadWithPython = R"(
import io, pickle, pickletools, struct, sys, zipfile, zlib
raw = zlib.decompress(open(sys.argv[1], 'rb').read())
class Array: pass
class Dtype:
    def __init__(self, name, align, copy): self.name = name
    def __setstate__(self, state): self.order = state[1]; assert state[0] == 3 and state[5:] == (-1, -1, 0)
def frombuffer(data, dtype, shape, order):
    assert order == 'C'
    a = Array(); a.data = data; a.dtype = dtype; a.shape = shape
    return a
class Storage:
    def __init__(self, name): self.name = name
def rebuild(storage, offset, size, stride, grad, hooks):
    a = Array(); a.shape = size; a.dtype = Dtype(storage[0], 0, 0); a.data = storage[1]; a.stride = stride
    assert offset == 0 and grad is False and hooks == {}
    return a
names = {'numpy._core.numeric _frombuffer': frombuffer, 'numpy dtype': Dtype,
         'torch._utils _rebuild_tensor_v2': rebuild, 'collections OrderedDict': dict,
         'torch CharStorage': 'i1', 'torch HalfStorage': 'f2', 'torch FloatStorage': 'f4'}
class Unpickler(pickle.Unpickler):
    def find_class(self, module, name): return names[module + ' ' + name]
    def persistent_load(self, id):
        assert id[0] == 'storage' and id[3] == 'cpu'
        data = archive.read('archive/data/' + id[2])
        assert len(data) == id[4] * int(id[1][1])
        return (id[1], data)
if raw[:2] == b'PK':
    archive = zipfile.ZipFile(io.BytesIO(raw))
    assert archive.testzip() is None and archive.read('archive/version') == b'3\n'
    raw = archive.read('archive/data.pkl')
pickletools.dis(raw, out=io.StringIO())
state = Unpickler(io.BytesIO(raw)).load()
print(state['__quant_format__'], sorted(state))
for name, q in state['quantized'].items():
    scale = state['scales'][name]
    s = struct.unpack('<%de' % q.shape[0], scale.data)
    values = struct.unpack('%db' % (len(q.data)), q.data)
    print(name, q.shape, q.dtype.name, scale.shape, scale.dtype.name, state['dtypes'][name], state['qmeta'][name],
          '%.5f' % (values[5] * s[0]), len(q.data))
for name, a in state['passthrough'].items():
    print(name, a.shape, a.dtype.name, state['passthrough_orig_dtypes'].get(name), len(a.data))
)";

TEST_P(Int8State, PythonsPickleLoadsWrittenFiles) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  const auto file = folder_.write("model.int8.ptz", int8_ptz(int8_state(table_, tensors_, GetParam())));
  const auto script = folder_.write("read.py", kReadWithPython);
  const RunResult read = run_python({script.string(), file.string()});
  ASSERT_EQ(read.exit_code, 0) << read;
  EXPECT_TRUE(
      read.out.starts_with("int8_clean_per_row_v1 ['__quant_format__', 'dtypes', 'passthrough', "
                           "'passthrough_orig_dtypes', 'qmeta', "
                           "'quantized', 'scales']\n"))
      << read;
  const auto index = static_cast<std::size_t>(table_.find("tok_emb.weight") - table_.all().data());
  const PackedTensor& embedding = tensors_[index];
  EXPECT_NE(
      read.out.find(fmt::format("tok_emb.weight (1040, 64) i1 (1040,) f2 bfloat16 {{'scheme': 'per_row', "
                                "'axis': 0}} {:.5f} 66560",
                                static_cast<float>(embedding.q[5]) * embedding.scales[0])),
      std::string::npos)
      << read;
  EXPECT_NE(read.out.find("blocks.0.attn.c_q.weight (64, 64) f2 float32 8192\n"), std::string::npos) << read;
  EXPECT_NE(read.out.find("blocks.0.resid_mix (2, 64) f4 None 512\n"), std::string::npos) << read;
}

// Writes files as newer versions of numpy and Python do (protocol 5, _frombuffer over a bytearray),
// and as torch.save does, using Python's pickler with stand-ins for their classes.
constexpr const char* kWriteWithPython = R"(
import collections, io, pickle, sys, types, zipfile, zlib
def module(name): sys.modules[name] = types.ModuleType(name); return sys.modules[name]
def put(place, thing): thing.__module__ = place.__name__; setattr(place, thing.__name__, thing); return thing
numpy, _core, numeric, torch, utils = map(module, ('numpy', 'numpy._core', 'numpy._core.numeric', 'torch', 'torch._utils'))
def _frombuffer(*args): pass
def _rebuild_tensor_v2(*args): pass
put(numeric, _frombuffer); put(utils, _rebuild_tensor_v2)
class dtype:
    def __init__(self, *args): self.args = args
    def __reduce__(self): return (dtype, self.args, (3, '|' if self.args[0] == 'i1' else '<', None, None, None, -1, -1, 0))
put(numpy, dtype)
class CharStorage: pass
class HalfStorage: pass
class FloatStorage: pass
storages = {'i1': put(torch, CharStorage), 'f2': put(torch, HalfStorage), 'f4': put(torch, FloatStorage)}
dtypes = {name: dtype(name, False, True) for name in storages}
class Data:
    def __init__(self, kind, data): self.kind, self.data, self.key = kind, data, None
class Array:
    def __init__(self, kind, shape, data): self.kind, self.shape, self.data = kind, shape, data
    def __reduce__(self):
        if by == 'numpy': return (_frombuffer, (bytearray(self.data), dtypes[self.kind], self.shape, 'C'))
        strides, step = [], 1
        for size in reversed(self.shape): strides.insert(0, step); step *= size
        return (_rebuild_tensor_v2, (Data(self.kind, self.data), 0, self.shape, tuple(strides), False, collections.OrderedDict()))
class Pickler(pickle.Pickler):
    def persistent_id(self, thing):
        if not isinstance(thing, Data): return None
        key = str(len(data)); data.append(thing.data)
        return ('storage', storages[thing.kind], key, 'cpu', len(thing.data) // int(thing.kind[1]))
by, data = sys.argv[3], []
state = {'__quant_format__': 'int8_clean_per_row_v1', 'quantized': {}, 'scales': {}, 'dtypes': {}, 'passthrough': {}, 'qmeta': {}}
for name, shape, count in eval(open(sys.argv[2]).read()):
    if count > 65536:
        state['quantized'][name] = Array('i1', shape, bytes([3]) * count)
        state['scales'][name] = Array('f2', (shape[0],), b'\x00\x38' * shape[0])
        state['dtypes'][name] = 'float32'
        state['qmeta'][name] = {'scheme': 'per_row', 'axis': 0}
    else:
        state['passthrough'][name] = Array('f4', shape, b'\x00\x00\x80\x3f' * count)
out = io.BytesIO()
Pickler(out, protocol=5 if by == 'numpy' else 2).dump(state)
if by == 'torch':
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, 'w') as z:
        z.writestr('archive/data.pkl', out.getvalue())
        for key, content in enumerate(data): z.writestr('archive/data/%d' % key, content)
        z.writestr('archive/version', '3\n')
    out = archive
open(sys.argv[1], 'wb').write(zlib.compress(out.getvalue()))
)";

TEST(Int8StateOfPython, FilesPickledByPythonAreRead) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  const Config config = small_golf();
  const ParamTable table(config.model);
  std::string spec = "[";
  for (const Param& param : table.all())
    spec += fmt::format("('{}', ({}{}), {}),", param.name, fmt::join(param.dims, ","),
                        param.dims.empty() ? "" : ",", param.count());
  const TempFolder folder;
  const auto script = folder.write("write.py", kWriteWithPython), list = folder.write("spec", spec + "]");
  for (const char* by : {"numpy", "torch"}) {
    SCOPED_TRACE(by);
    const auto file = folder / (std::string(by) + ".int8.ptz");
    const RunResult wrote = run_python({script.string(), file.string(), list.string(), by});
    ASSERT_EQ(wrote.exit_code, 0) << wrote;
    const ModelFile model = open_int8_state(file, config);
    for (const Param& param : table.all())
      EXPECT_EQ(model.weights[static_cast<std::size_t>(param.offset)], param.count() > 65536 ? 1.5f : 1.0f)
          << param.name;
  }
}

// Pickles the content of the file again, as the scripts do: the names of tensors and constants are
// the same objects everywhere, the names of types are made anew each time.
constexpr const char* kPickleAgain = R"(
import collections, io, pickle, sys, types, zipfile, zlib
def module(name): sys.modules[name] = types.ModuleType(name); return sys.modules[name]
def put(place, thing): thing.__module__ = place.__name__; setattr(place, thing.__name__, thing); return thing
numpy, _core, numeric, torch, utils = map(module, ('numpy', 'numpy._core', 'numpy._core.numeric', 'torch', 'torch._utils'))
def _frombuffer(data, dtype, shape, order): return Array(dtype.args[0], shape, bytes(data))
def _rebuild_tensor_v2(storage, offset, shape, *rest): return Array(storage[0], shape, storage[1])
put(numeric, _frombuffer); put(utils, _rebuild_tensor_v2)
class dtype:
    def __init__(self, *args): self.args = args
    def __setstate__(self, state): pass
    def __reduce__(self): return (dtype, self.args, (3, '|' if self.args[0] == 'i1' else '<', None, None, None, -1, -1, 0))
put(numpy, dtype)
class CharStorage: kind = 'i1'
class HalfStorage: kind = 'f2'
class FloatStorage: kind = 'f4'
storages = {s.kind: put(torch, s) for s in (CharStorage, HalfStorage, FloatStorage)}
dtypes = {name: dtype(name, False, True) for name in storages}
class Data:
    def __init__(self, kind, data): self.kind, self.data = kind, data
class Array:
    def __init__(self, kind, shape, data): self.kind, self.shape, self.data = kind, shape, data
    def __reduce_ex__(self, protocol):
        if not archive: return (_frombuffer, (pickle.PickleBuffer(bytearray(self.data)), dtypes[self.kind], self.shape, 'C'))
        strides, step = [], 1
        for size in reversed(self.shape): strides.insert(0, step); step *= size
        return (_rebuild_tensor_v2, (Data(self.kind, self.data), 0, self.shape, tuple(strides), False, collections.OrderedDict()))
written = []
class Pickler(pickle.Pickler):
    def persistent_id(self, thing):
        if not isinstance(thing, Data): return None
        written.append(thing.data)
        return ('storage', storages[thing.kind], str(len(written) - 1), 'cpu', len(thing.data) // int(thing.kind[1]))
class Unpickler(pickle.Unpickler):
    def persistent_load(self, id): return (id[1].kind, archive.read('archive/data/' + id[2]))
file = open(sys.argv[1], 'rb').read()
raw = zlib.decompress(file)
print('zlib', zlib.compress(raw, level=9) == file)
archive = zipfile.ZipFile(io.BytesIO(raw)) if raw[:2] == b'PK' else None
if archive: raw = archive.read('archive/data.pkl')
old = Unpickler(io.BytesIO(raw)).load()
order = eval(open(sys.argv[2]).read())
new = {'__quant_format__': 'int8_clean_per_row_v1', 'quantized': {}, 'scales': {}, 'dtypes': {}, 'passthrough': {}}
qmeta, originals = {}, {}
for name in order:
    if name in old['quantized']:
        if name in old['qmeta']: qmeta[name] = {'scheme': 'per_row', 'axis': 0}
        new['quantized'][name] = old['quantized'][name]
        new['scales'][name] = old['scales'][name]
        new['dtypes'][name] = ('mlx.core.' + old['dtypes'][name]).split('.')[-1]
    else:
        if name in old['passthrough_orig_dtypes']: originals[name] = ('mlx.core.' + old['passthrough_orig_dtypes'][name]).split('.')[-1]
        new['passthrough'][name] = old['passthrough'][name]
if qmeta: new['qmeta'] = qmeta
if originals: new['passthrough_orig_dtypes'] = originals
out = io.BytesIO()
if archive: Pickler(out, protocol=2).dump(new)
else: out.write(pickle.dumps(new, protocol=5))
again = out.getvalue()
at = next((i for i, (a, b) in enumerate(zip(raw, again)) if a != b), None)
print('pickle', raw == again, len(raw), len(again), at)
)";

std::string names_in_order_of(PickledBy by, int layers) {
  const std::vector<std::string> matrices = {"attn.c_q.weight", "attn.c_k.weight", "attn.c_v.weight",
                                             "attn.proj.weight"},
                                 mlp = {"mlp.fc.weight", "mlp.proj.weight"},
                                 scales = {"attn_scale", "mlp_scale", "resid_mix"}, gain = {"attn.q_gain"};
  const bool torch = by == PickledBy::torch;
  std::string names = torch ? "['skip_weights','tok_emb.weight'," : "['tok_emb.weight','skip_weights',";
  const auto parts =
      torch ? std::vector{scales, gain, matrices, mlp} : std::vector{matrices, gain, mlp, scales};
  for (int layer = 0; layer < layers; ++layer)
    for (const auto& part : parts)
      for (const std::string& name : part) names += fmt::format("'blocks.{}.{}',", layer, name);
  return names + "]";
}

// Twelve layers need more than 256 places in the memo. Frames are tested by tensors of more and of
// fewer than 64 KiB.
TEST_P(Int8State, HasTheBytesOfPythonsPickleAndZlib) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  for (const int layers : {12, 1}) {
    const ParamTable table(small_golf(fmt::format("layers={}", layers).c_str()).model);
    std::vector<float> weights(static_cast<std::size_t>(table.block_size()));
    initialize(table, 7, weights);
    Int8Stats stats;
    const auto tensors = quantize_int8_state(
        table, weights, GetParam() == PickledBy::numpy ? kControl : std::vector<std::string>{"attn_scale"},
        stats);
    const auto file = folder_.write("model.int8.ptz", int8_ptz(int8_state(table, tensors, GetParam())));
    const auto script = folder_.write("again.py", kPickleAgain),
               names = folder_.write("names", names_in_order_of(GetParam(), layers));
    const RunResult again = run_python({script.string(), file.string(), names.string()});
    ASSERT_EQ(again.exit_code, 0) << again;
    EXPECT_TRUE(again.out.starts_with("zlib True\npickle True ")) << again;
    EXPECT_EQ(open_int8_ptz(file, table), tensors);
  }
}

// A malicious pickle is rejected with the name of the call, which is not executed.
TEST(Int8StateOfPython, NothingIsExecuted) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  const TempFolder folder;
  const auto script = folder.write("write.py", R"(
import os, pickle, sys, zlib
class Evil:
    def __reduce__(self): return (os.system, ('touch owned',))
for protocol in (2, 4, 5):
    open('evil%d.ptz' % protocol, 'wb').write(zlib.compress(pickle.dumps({'a': Evil()}, protocol=protocol)))
open('list.ptz', 'wb').write(zlib.compress(pickle.dumps([1, 2], protocol=4)))
open('float.ptz', 'wb').write(zlib.compress(pickle.dumps({'a': 1.5}, protocol=4)))
open('dict.ptz', 'wb').write(zlib.compress(pickle.dumps({'a': 1}, protocol=4)))
)");
  const RunResult wrote = run_python({script.string()}, folder.path());
  ASSERT_EQ(wrote.exit_code, 0) << wrote;
  const ParamTable table(small_golf().model);
  const auto refusal = [&](const char* name) {
    return message_of([&] { open_int8_ptz(folder / name, table); });
  };
  for (const char* name : {"evil2.ptz", "evil4.ptz", "evil5.ptz"})
    EXPECT_NE(refusal(name).find("the pickle uses posix.system, which is not one of numpy.core"),
              std::string::npos)
        << refusal(name);
  EXPECT_NE(refusal("list.ptz").find("instruction 0x5d at"), std::string::npos) << refusal("list.ptz");
  EXPECT_NE(refusal("float.ptz").find("instruction 0x47 at"), std::string::npos) << refusal("float.ptz");
  EXPECT_NE(refusal("dict.ptz").find("is not an int8_clean_per_row_v1 state"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "owned"));
}

TEST_P(Int8State, TruncatedFilesAreRejectedAndChangedOnesAreSafe) {
  const std::string state = int8_state(table_, tensors_, GetParam());
  const auto bytes = std::as_bytes(std::span(state));
  for (std::size_t size = 0; size < state.size(); size += 1 + state.size() / 97)
    EXPECT_THROW(read_int8_state(bytes.first(size), "cut", table_), Error) << size;
  for (std::size_t at = 0; at < state.size(); at += 1 + state.size() / 499) {
    std::string changed = state;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    try {  // a changed number is still valid; anything else is rejected
      read_int8_state(std::as_bytes(std::span(changed)), "changed", table_);
    } catch (const Error&) {
    }
  }
}

TEST_P(Int8State, DecompressionBombIsRejected) {
  const auto file = folder_.write("bomb.ptz", int8_ptz(std::string(64 << 20, '\0')));
  EXPECT_NE(message_of([&] { open_int8_ptz(file, table_); }).find("decompresses to more than"),
            std::string::npos);
}

// The published size of the golf baseline.
TEST(Int8StateOfTheBaseline, HasThePublishedPayload) {
  ConfigBuilder settings;
  settings.preset("golf-mlx");
  const ParamTable table(settings.resolve().model);
  const std::vector<float> weights(static_cast<std::size_t>(table.block_size()), 0.01f);
  Int8Stats stats;
  quantize_int8_state(table, weights, kControl, stats);
  EXPECT_EQ(stats.payload_bytes, 17'178'912u);
  EXPECT_EQ(stats.float_bytes, 67'191'072u);
  EXPECT_EQ(fmt::format("{:.2f}", stats.ratio()), "3.91");
}

TEST(Int8StateOfTheBaseline, PatternsDecideWhichTensorsStayF32) {
  const ParamTable table(small_golf().model);
  const std::vector<float> weights(static_cast<std::size_t>(table.block_size()), 0.01f);
  Int8Stats all, none;
  quantize_int8_state(table, weights, kControl, all);
  const auto tensors = quantize_int8_state(table, weights, {}, none);
  EXPECT_LT(none.payload_bytes, all.payload_bytes);
  for (const PackedTensor& tensor : tensors) EXPECT_NE(tensor.storage, Storage::f32);
}

}  // namespace
}  // namespace thimble::int8_state_test
