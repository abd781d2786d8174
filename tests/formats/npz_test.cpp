#include "formats/npz.h"

#include <algorithm>

#include "base/files.h"
#include "config/builder.h"
#include "formats/python.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::npz_test {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Config tiny_golf() {
  ConfigBuilder settings;
  settings.preset("golf-mlx");
  for (const char* setting : {"vocab_size=32", "context=16", "layers=2", "dim=16", "heads=2", "kv_heads=1"})
    settings.set(setting);
  return settings.resolve();
}

std::vector<float> numbered_weights(const ParamTable& table) {
  std::vector<float> weights(static_cast<std::size_t>(table.block_size()));
  for (const Param& param : table.all())
    for (std::int64_t i = 0; i < param.count(); ++i)
      weights[static_cast<std::size_t>(param.offset + i)] = 0.25f * static_cast<float>(i % 17) - 1;
  return weights;
}

// Reads the file with zipfile and the format's documentation, without numpy.
constexpr const char* kReadWithPython = R"(
import ast, struct, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    assert z.testzip() is None
    for name in z.namelist():
        data = z.read(name)
        assert data[:8] == b'\x93NUMPY\x01\x00', name
        size = struct.unpack('<H', data[8:10])[0]
        assert (10 + size) % 64 == 0 and data[10 + size - 1] == 10
        header = ast.literal_eval(data[10:10 + size].decode())
        values = struct.unpack('<%df' % ((len(data) - 10 - size) // 4), data[10 + size:])
        print(name, header['descr'], header['fortran_order'], header['shape'], sum(values))
)";

TEST(Npz, PythonReadsWrittenFiles) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  const ParamTable table(tiny_golf().model);
  const std::vector<float> weights = numbered_weights(table);
  const TempFolder folder;
  const auto file = folder.write("model.npz", npz_of(table, weights));
  const auto script = folder.write("read.py", kReadWithPython);
  const RunResult read = run_python({script.string(), file.string()});
  ASSERT_EQ(read.exit_code, 0) << read;
  EXPECT_NE(read.out.find("tok_emb.weight.npy <f4 False (32, 16) "), std::string::npos) << read;
  EXPECT_NE(read.out.find("blocks.0.attn.q_gain.npy <f4 False (2,) -1.75"), std::string::npos) << read;
  EXPECT_EQ(std::ranges::count(read.out, '\n'), std::ssize(table.all()));
}

// Deflated like numpy.savez_compressed; f16 and MLX's notation of bfloat16.
constexpr const char* kWriteWithPython = R"(
import struct, sys, zipfile
def npy(descr, shape, data):
    header = ("{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, shape)).encode()
    header += b' ' * (63 - (10 + len(header)) % 64) + b'\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + data
with zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED) as z:
    z.writestr('a.weight.npy', npy('<f4', '(2, 3)', struct.pack('<6f', 1, 2, 3, 4, 5, 6)))
    with z.open('b.npy', 'w', force_zip64=True) as f:
        f.write(npy('<f2', '(2,)', struct.pack('<2e', 0.5, -2)))
    z.writestr('c.npy', npy('<V2', '()', b'\x80\x3f'))
)";

TEST(Npz, FilesWrittenByPythonAreRead) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  const TempFolder folder;
  const auto script = folder.write("write.py", kWriteWithPython);
  const RunResult wrote = run_python({script.string(), (folder / "x.npz").string()});
  ASSERT_EQ(wrote.exit_code, 0) << wrote;
  const std::string bytes = folder.read("x.npz");
  const auto arrays = read_npz(as_bytes(bytes), "x.npz");
  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_EQ(arrays[0].name, "a.weight");
  EXPECT_EQ(arrays[0].dims, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(arrays[0].values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(arrays[1].dtype, "F16");
  EXPECT_EQ(arrays[1].values, (std::vector<float>{0.5f, -2}));
  EXPECT_EQ(arrays[2].dtype, "BF16");
  EXPECT_TRUE(arrays[2].dims.empty());
  EXPECT_EQ(arrays[2].values, std::vector<float>{1});
}

TEST(Npz, WeightsRoundTripAndShapesAreChecked) {
  const Config config = tiny_golf();
  const ParamTable table(config.model);
  const TempFolder folder;
  const auto file = folder.write("model.npz", npz_of(table, numbered_weights(table)));
  const ModelFile model = open_npz(file, config, "");
  EXPECT_EQ(model.weights, numbered_weights(table));
  EXPECT_EQ(model.architecture, "golf");

  Config other = config;
  other.model.vocab_size = 33;
  EXPECT_NE(
      message_of([&] { open_npz(file, other, ""); }).find("tok_emb.weight is [32, 16], expected [33, 16]"),
      std::string::npos);
}

TEST(Npz, AModelOfOneLayerHasTheEmptyTensorOfTheScripts) {
  ConfigBuilder settings;
  settings.preset("golf");
  for (const char* setting : {"layers=1", "vocab_size=32", "dim=16", "heads=2", "kv_heads=1"})
    settings.set(setting);
  const Config config = settings.resolve();
  const ParamTable table(config.model);
  ASSERT_EQ(table.find("skip_weights"), nullptr);
  const std::string bytes = npz_of(table, numbered_weights(table));
  const std::vector<NamedArray> arrays = read_npz(std::as_bytes(std::span(bytes)), "model");
  const auto empty = std::ranges::find(arrays, "skip_weights", &NamedArray::name);
  ASSERT_NE(empty, arrays.end());
  EXPECT_EQ(empty->dims, (std::vector<std::int64_t>{0, 16}));
  const TempFolder folder;
  EXPECT_EQ(open_npz(folder.write("model.npz", bytes), config, "").weights, numbered_weights(table));
}

TEST(Npz, EveryDamagedByteIsRejectedOrHarmless) {
  const Config config = tiny_golf();
  const ParamTable table(config.model);
  const std::string good = npz_of(table, numbered_weights(table));
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x41);
    try {
      read_npz(as_bytes(bad), "bad.npz");
    } catch (const Error&) {
      ++refused;
    }
  }
  // The other bytes are fields that the reader ignores: versions, dates, attributes.
  EXPECT_GT(refused, static_cast<int>(good.size() / 7) * 9 / 10);
  for (std::size_t size = 0; size < good.size(); size += 101)
    EXPECT_THROW(read_npz(as_bytes(good).first(size), "cut.npz"), Error) << size;
}

TEST(Npz, ObjectArraysAreRejectedByName) {
  ZipWriter zip;
  std::string array = "\x93NUMPY";
  const std::string header = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }";
  array.append("\x01\x00", 2).push_back(static_cast<char>(header.size()));
  array.push_back('\0');
  array.append(header).append("pickled");
  zip.add("evil.npy", as_bytes(array));
  const std::string bytes = std::move(zip).finish();
  EXPECT_EQ(message_of([&] { read_npz(as_bytes(bytes), "x.npz"); }),
            "x.npz: evil: found elements of type '|O', expected <f4, <f2 or V2 (bfloat16)");
}

TEST(Zip, AlignsEntries) {
  ZipWriter zip(64);
  const std::string a(100, 'a'), b(7, 'b');
  zip.add("archive/data.pkl", as_bytes(a));
  zip.add("archive/data/0", as_bytes(b));
  const std::string bytes = std::move(zip).finish();
  const ZipFile file(as_bytes(bytes), "zip");
  ASSERT_EQ(file.entries().size(), 2u);
  for (const ZipEntry& entry : file.entries()) EXPECT_EQ(entry.begin % 64, 0u) << entry.name;
}

}  // namespace
}  // namespace thimble::npz_test
