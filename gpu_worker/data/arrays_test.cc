#include "gpu_worker/data/arrays.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/npz_test_files.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WrittenNpz(const std::vector<Array>& arrays) {
  std::string bytes;
  const absl::Status status = WriteNpz(arrays, [&bytes](absl::string_view piece) {
    absl::StrAppend(&bytes, piece);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

class ArraysTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name, const std::string& bytes) {
    return folder_.Write(name, bytes);
  }
  std::string Error(const std::string& name, const std::string& bytes) {
    const absl::Status status = ReadArrays(File(name, bytes)).status();
    return absl::StrCat(FailureReason(status), ": ", status.message());
  }
  TempFolder folder_;
};

TEST_F(ArraysTest, WhatWasWrittenIsRead) {
  const std::vector<Array> arrays = {{"x", {2, 3}, {1, -2, 3.5f, 0, 1e-45f, 3e38f}},
                                     {"a/b \xC3\xA9", {}, {7}},
                                     {"long", {100, 7, 11}, std::vector<float>(7700, 0.25f)},
                                     {"none", {0, 4}, {}}};
  const auto read = ReadArrays(File("a.npz", WrittenNpz(arrays)));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) {
    EXPECT_EQ((*read)[i].name, arrays[i].name);
    EXPECT_EQ((*read)[i].shape, arrays[i].shape);
    EXPECT_EQ((*read)[i].numbers, arrays[i].numbers);
  }
  std::string bytes;
  ASSERT_TRUE(WriteNpy(arrays[0], [&bytes](absl::string_view piece) {
                absl::StrAppend(&bytes, piece);
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(bytes.size(), 128u + 24u);
  const auto one = ReadArrays(File("a.npy", bytes));
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].name, "");
  EXPECT_EQ((*one)[0].shape, arrays[0].shape);
  EXPECT_EQ((*one)[0].numbers, arrays[0].numbers);
}

TEST_F(ArraysTest, DoublesBecomeFloats) {
  const auto read = ReadArrays(
      File("d.npz", Zip({{"x.npy", Npy("<f8", "(2,)", BytesOf<double>({0.1, -1e30}))}})));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT((*read)[0].numbers, ElementsAre(0.1f, -1e30f));
}

TEST_F(ArraysTest, WholeNumbersBecomeFloats) {
  constexpr int64_t kMost = 1 << 24;
  const auto read = ReadArrays(
      File("w.npz", Zip({{"x.npy", Npy("<i8", "(3,)", BytesOf<int64_t>({-kMost, 7, kMost}))},
                         {"y.npy", Npy("<i4", "(1,)", BytesOf<int32_t>({-3}))}})));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT((*read)[0].numbers, ElementsAre(-0x1p24f, 7.0f, 0x1p24f));
  EXPECT_THAT((*read)[1].numbers, ElementsAre(-3.0f));
}

TEST_F(ArraysTest, WhatCannotBeReadIsNamed) {
  EXPECT_THAT(Error("a.txt", ""), HasSubstr("InvalidSpec: "));
  EXPECT_THAT(Error("a.txt", ""), HasSubstr("want a name that ends with .npz or .npy"));
  EXPECT_THAT(Error("a.npy", "no"), HasSubstr("DataMissing: "));
  EXPECT_THAT(Error("i.npy", Npy("<i2", "(1,)", BytesOf<int16_t>({5}))),
              HasSubstr("i.npy: numbers of type '<i2', want float32 or float64"));
  EXPECT_THAT(Error("i.npy", Npy("<i8", "(2,)", BytesOf<int64_t>({5, (1 << 24) + 1}))),
              HasSubstr("i.npy: number 1 is beyond 2^24, up to which float32 has all"));
  EXPECT_THAT(
      Error("n.npz",
            Zip({{"x.npy", Npy("<f4", "(2,)",
                               BytesOf<float>({1, std::numeric_limits<float>::infinity()}))}})),
      HasSubstr("number 1 is not finite as float32"));
  EXPECT_THAT(Error("m.npz", Zip({{"readme", "hello"}})),
              HasSubstr("member 'readme', want arrays"));
  EXPECT_THAT(Error("s.npy", Npy("<f4", "(3,)", BytesOf<float>({1, 2}))),
              HasSubstr("DataMissing: "));
}

TEST_F(ArraysTest, WhatCannotBeWrittenIsNamed) {
  const auto error = [](const std::vector<Array>& arrays) {
    return std::string(
        WriteNpz(arrays, [](absl::string_view) { return absl::OkStatus(); }).message());
  };
  EXPECT_EQ(error({{"x", {}, {1}}, {"x", {}, {1}}}), "array 'x': two arrays have this name");
  for (const char* const name : {"", "\x01", "\xFF", "\xC0\x80", "\xED\xA0\x80", "\xC2\x85",
                                 "\xF5\x80\x80\x80", "\xE2\x82"}) {
    EXPECT_THAT(error({{name, {}, {1}}}), HasSubstr("want a name of UTF-8")) << name;
  }
  const absl::Status full = WriteNpz(
      {{"x", {}, {1}}}, [](absl::string_view) { return absl::ResourceExhaustedError("no space"); });
  EXPECT_EQ(full.message(), "no space");
}

}  // namespace
}  // namespace capstan::data
