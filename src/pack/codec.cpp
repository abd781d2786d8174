#include "pack/codec.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "base/error.h"
#include "pack/range_codec.h"

namespace thimble {

namespace {

constexpr std::size_t kPiece = 1 << 18;  // bytes per progress update; about 0.25 s of zstd-22
constexpr int kZstdLevel = 22, kZlibLevel = 9;

using Bytes = std::vector<std::byte>;
using OnProgress = std::function<void(std::size_t)>;

std::size_t checked(std::size_t result) {
  check(!ZSTD_isError(result), "[zstd] {}", ZSTD_getErrorName(result));
  return result;
}

struct FreeZstd {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// Sets a window that is large enough for the end of the input to refer to the start of the prefix.
void refer_to(Prefix prefix, std::size_t bytes, ZSTD_CCtx* context) {
  const int window_log = std::clamp(static_cast<int>(std::bit_width(prefix.size() + bytes)), 10, 27);
  checked(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log));
  checked(ZSTD_CCtx_refPrefix(context, prefix.data(), prefix.size()));
}

Bytes zstd_compress(std::span<const std::byte> bytes, const OnProgress& on_progress, Prefix prefix) {
  const std::unique_ptr<ZSTD_CCtx, FreeZstd> context(ZSTD_createCCtx());
  if (!context) throw std::bad_alloc();
  checked(ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kZstdLevel));
  checked(ZSTD_CCtx_setPledgedSrcSize(context.get(), bytes.size()));
  if (!prefix.empty()) refer_to(prefix, bytes.size(), context.get());
  Bytes out(ZSTD_compressBound(bytes.size()));
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  std::size_t left = 1;
  for (std::size_t at = 0; left != 0;) {
    const std::size_t size = std::min(kPiece, bytes.size() - at);
    ZSTD_inBuffer from{bytes.data() + at, size, 0};
    const bool last = at + size == bytes.size();
    left = checked(ZSTD_compressStream2(context.get(), &to, &from, last ? ZSTD_e_end : ZSTD_e_continue));
    at += from.pos;
    if (!last) left = 1;
    if (on_progress) on_progress(from.pos);
  }
  out.resize(to.pos);
  return out;
}

struct Deflate {
  z_stream state{};
  Deflate() {
    constexpr int kMaxMemoryLevel = 9;
    if (deflateInit2(&state, kZlibLevel, Z_DEFLATED, MAX_WBITS, kMaxMemoryLevel, Z_DEFAULT_STRATEGY) != Z_OK)
      throw std::bad_alloc();
  }
  ~Deflate() { deflateEnd(&state); }
  Deflate(const Deflate&) = delete;
  Deflate& operator=(const Deflate&) = delete;
};

Bytes zlib_compress(std::span<const std::byte> bytes, const OnProgress& on_progress) {
  Deflate deflater;
  Bytes out;
  std::size_t at = 0;
  int result = Z_OK;
  while (result != Z_STREAM_END) {
    const std::size_t size = std::min(kPiece, bytes.size() - at), made = out.size();
    out.resize(made + size + kPiece);
    z_stream& z = deflater.state;
    z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + at));  // zlib only reads it
    z.avail_in = static_cast<uInt>(size);
    z.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    z.avail_out = static_cast<uInt>(out.size() - made);
    result = deflate(&z, at + size == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    check(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR, "[zlib] deflate returned {}",
          result);
    at += size - z.avail_in;
    out.resize(out.size() - z.avail_out);
    if (on_progress) on_progress(size - z.avail_in);
  }
  return out;
}

void zlib_decompress(std::span<const std::byte> stored, std::span<std::byte> bytes) {
  uLongf made = bytes.size();
  uLong used = stored.size();
  const int result = uncompress2(reinterpret_cast<Bytef*>(bytes.data()), &made,
                                 reinterpret_cast<const Bytef*>(stored.data()), &used);
  check(result == Z_OK && made == bytes.size() && used == stored.size(),
        "the zlib data is damaged: expected {} bytes from {}, found {} from {}", bytes.size(), stored.size(),
        made, used);
}

void zstd_decompress(std::span<const std::byte> stored, std::span<std::byte> bytes, Prefix prefix) {
  const std::unique_ptr<ZSTD_DCtx, FreeZstd> context(ZSTD_createDCtx());
  if (!context) throw std::bad_alloc();
  checked(ZSTD_DCtx_refPrefix(context.get(), prefix.data(), prefix.size()));
  const std::size_t made =
      ZSTD_decompressDCtx(context.get(), bytes.data(), bytes.size(), stored.data(), stored.size());
  check(!ZSTD_isError(made), "the zstd data is damaged: {}", ZSTD_getErrorName(made));
  check(made == bytes.size(), "the zstd data is damaged: expected {} bytes, found {}", bytes.size(), made);
}

}  // namespace

std::string_view name_of(Codec codec) {
  return codec == Codec::zstd ? "zstd" : codec == Codec::zlib ? "zlib" : "range";
}

Bytes compress(std::span<const std::byte> bytes, Codec codec, const OnProgress& on_progress, Prefix prefix) {
  if (codec == Codec::zstd) return zstd_compress(bytes, on_progress, prefix);
  check(prefix.empty(), "[{}] does not support a prefix", name_of(codec));
  return codec == Codec::zlib ? zlib_compress(bytes, on_progress) : range_compress(bytes, {}, on_progress);
}

void decompress(std::span<const std::byte> stored, Codec codec, std::span<std::byte> bytes, Prefix prefix) {
  if (codec == Codec::zstd) return zstd_decompress(stored, bytes, prefix);
  check(prefix.empty(), "[{}] does not support a prefix", name_of(codec));
  codec == Codec::zlib ? zlib_decompress(stored, bytes) : range_decompress(stored, bytes);
}

}  // namespace thimble
