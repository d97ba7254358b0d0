#include "training/codec/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SafetensorsTensor F32(std::string name, std::vector<int64_t> shape) {
  SafetensorsTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  return tensor;
}

// The head of a file around `json`, made by hand.
std::string Head(const std::string& json) {
  const uint64_t length = json.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  return head + json;
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& json, int64_t data_bytes) {
  const std::string head = Head(json);
  return ParseSafetensorsHeader("w.safetensors", head, head.size() + data_bytes);
}

TEST(SafetensorsTest, WritesTheFormatByHand) {
  const absl::StatusOr<std::string> head = EncodeSafetensorsHeader(
      {F32("conv1.weight", {6, 1, 5, 5}), F32("conv1.bias", {6})}, {{"format", "pt"}});
  ASSERT_TRUE(head.ok()) << head.status();
  const std::string json =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"conv1.weight\":{\"dtype\":\"F32\",\"shape\":[6,1,5,5],\"data_offsets\":[0,600]},"
      "\"conv1.bias\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[600,624]}}";
  EXPECT_EQ(head->size() % 8, 0u);
  EXPECT_EQ(static_cast<uint8_t>((*head)[0]), head->size() - 8);  // below 256: one byte of length
  EXPECT_EQ(head->substr(8, json.size()), json);
  EXPECT_EQ(head->find_first_not_of(' ', 8 + json.size()), std::string::npos);
}

TEST(SafetensorsTest, ReadsItBack) {
  SafetensorsTensor counter = F32("steps \"a\\b\"\n\xC3\xA9", {});
  counter.dtype = SafetensorsDtype::kI64;
  const std::string head =
      *EncodeSafetensorsHeader({F32("w", {2, 3}), F32("none", {0, 7}), counter}, {{"k", "v"}});
  const absl::StatusOr<SafetensorsHeader> got =
      ParseSafetensorsHeader("w.safetensors", head, head.size() + 32);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->tensors.size(), 3u);
  EXPECT_EQ(got->tensors[0].name, "w");
  EXPECT_THAT(got->tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(got->tensors[0].end, 24);
  EXPECT_EQ(got->tensors[1].size_bytes(), 0);
  EXPECT_EQ(got->Find(counter.name)->dtype, SafetensorsDtype::kI64);
  EXPECT_EQ(got->Find(counter.name)->begin, 24);
  EXPECT_EQ(got->Find("w2"), nullptr);
  EXPECT_EQ(got->metadata.at("k"), "v");
  EXPECT_EQ(got->data_start, static_cast<int64_t>(head.size()));
  EXPECT_EQ(got->data_bytes, 32);
}

TEST(SafetensorsTest, ReadsAnyOrderOfEntries) {
  const absl::StatusOr<SafetensorsHeader> got =
      Parse(R"({"a":{"shape":[1],"data_offsets":[4,8],"dtype":"F32"},)"
            R"("b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}} )",
            8);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->tensors[0].name, "b");
}

std::string Entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}");
}

TEST(SafetensorsTest, DamageIsDataLossThatNamesFileAndCheck) {
  const std::string good = Entry("a", "[2]", "[0,8]");
  const struct {
    std::string json;
    const char* message;
  } kCases[] = {
      {"{" + good + "," + Entry("b", "[1]", "[4,8]") + "}", "inside another one"},
      {"{" + good + "," + Entry("b", "[0]", "[12,12]") + "}", "a hole begins at 8"},
      {"{" + Entry("a", "[1]", "[4,8]") + "}", "a hole begins at 0"},
      {"{" + Entry("a", "[1]", "[0,4]") + "}",
       "tensors take 4 bytes after the header, the file has 8"},
      {"{}", "tensors take 0 bytes"},
      {"{" + Entry("a", "[3]", "[0,12]") + "}", "tensors take 12 bytes"},
      {"{" + good + "," + good + "}", "duplicate key 'a'"},
      {"{" + Entry("a", "[3]", "[0,8]") + "}",
       "shape [3] of F32 needs 12 bytes, data_offsets give 8"},
      {"{" + Entry("a", "[4294967296,4294967296]", "[0,8]") + "}", "needs 2^63 or more bytes"},
      {"{" + Entry("a", "[9223372036854775807,9223372036854775807,3]", "[0,8]") + "}",
       "2^63 or more"},
      {"{" + Entry("a", "[-2]", "[0,8]") + "}", "'shape' holds something else"},
      {"{" + Entry("a", "[2.0]", "[0,8]") + "}", "'shape' holds something else"},
      {"{" + Entry("a", "[18446744073709551615]", "[0,8]") + "}", "'shape' holds something else"},
      {"{" + Entry("a", "2", "[0,8]") + "}", "'shape' is not an array"},
      {"{" + Entry("a", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]") + "}", "17 dimensions"},
      {"{" + Entry("a", "[2]", "[8,0]") + "}", "not two ascending numbers"},
      {"{" + Entry("a", "[2]", "[0,4,8]") + "}", "not two ascending numbers"},
      {"{" + Entry("a", "[2]", "[0,8]", "F33") + "}", "unknown dtype 'F33'"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "lacks 'data_offsets'"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "unknown key 'x'"},
      {R"({"a":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})", "'dtype' is not a string"},
      {R"({"a":[]})", "not an object"},
      {R"({"__metadata__":{"a":1},)" + good + "}", "'__metadata__' entry 'a' is not a string"},
      {R"({"__metadata__":7,)" + good + "}", "'__metadata__' is not an object"},
      {"{" + good + "} x", "not JSON at byte"},
      {"{" + Entry("\xff", "[2]", "[0,8]") + "}", "not JSON at byte"},
      {"{" + Entry("a", "[[[[2]]]]", "[0,8]") + "}", "nested deeper than 3"},
      {" {" + good + "}", "does not begin with '{'"},
      {"", "does not begin with '{'"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Parse(c.json, 8).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.json;
    EXPECT_THAT(std::string(status.message()), HasSubstr("w.safetensors: "));
  }
}

TEST(SafetensorsTest, LengthsThatDoNotFitAreRefused) {
  const std::string head = Head("{}");
  EXPECT_THAT(std::string(SafetensorsHeaderEnd("f", head, 9).status().message()),
              HasSubstr("header length 2 does not fit into a file of 9 bytes"));
  EXPECT_EQ(*SafetensorsHeaderEnd("f", head, 10), 10);
  EXPECT_THAT(std::string(SafetensorsHeaderEnd("f", head, 7).status().message()),
              HasSubstr("too few"));
  EXPECT_THAT(std::string(ParseSafetensorsHeader("f", head.substr(0, 9), 10).status().message()),
              HasSubstr("got 9 of 10 bytes"));
  const std::string huge("\x00\x00\x00\x00\x00\x00\x00\x80", 8);  // 2^63
  EXPECT_THAT(std::string(SafetensorsHeaderEnd("f", huge, int64_t{1} << 62).status().message()),
              HasSubstr("header length 9223372036854775808, limit 100000000"));
  EXPECT_TRUE(ParseSafetensorsHeader("f", head, 10).ok());  // a file without tensors is valid
}

TEST(SafetensorsTest, WritesNothingThatItWouldNotRead) {
  const auto code = [](const std::vector<SafetensorsTensor>& tensors) {
    return EncodeSafetensorsHeader(tensors).status().code();
  };
  EXPECT_EQ(code({F32("a", {1}), F32("a", {1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({F32("", {1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({F32("__metadata__", {1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({F32("\xC0\x80", {1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({F32("a", {-1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({F32("a", {int64_t{1} << 61}), F32("b", {int64_t{1} << 61})}),
            absl::StatusCode::kInvalidArgument);  // 2^63 bytes together
  EXPECT_EQ(EncodeSafetensorsHeader({}, {{"k", "\xff"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace capstan::training
