#include "training/codec/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"

namespace capstan::training {
namespace {

using ::testing::HasSubstr;

const char kHash[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

// Written by hand, so that a change of the format shows. The hash in the last line is that of `head
// -n -2 | sha256sum`.
const char kText[] = R"({
  "format_version": 2,
  "job_id": "lenet-\"q\"-7k2q",
  "lineage": 3,
  "step": 500,
  "spec_digest": "abc",
  "training_digest": "def",
  "files": [
    {"name": "shard-0.safetensors", "size_bytes": 1234, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"name": "weights.safetensors", "size_bytes": 99, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
  ],
  "weights_sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
  "optimizer": "sgd",
  "samples_used": 64000,
  "orders": [4, 9],
  "lead_snapshot": "AAH+/w==",
  "created_by": "0.1.0",
  "manifest_sha256": "27c16b999033e95a74deafc5b3887214cd0bd4c08c3205982b2805824751d2ec"
}
)";

Manifest Example() {
  Manifest m;
  m.job_id = "lenet-\"q\"-7k2q";
  m.lineage = 3;
  m.step = 500;
  m.spec_digest = "abc";
  m.training_digest = "def";
  m.files = {{"shard-0.safetensors", 1234, kHash}, {"weights.safetensors", 99, kHash}};
  m.weights_sha256 = kHash;
  m.optimizer = "sgd";
  m.samples_used = 64000;
  m.orders = {4, 9};
  m.lead_snapshot = std::string("\x00\x01\xfe\xff", 4);
  m.created_by = "0.1.0";
  return m;
}

TEST(ManifestTest, WritesTheDocumentedText) { EXPECT_EQ(*EncodeManifest(Example()), kText); }

TEST(ManifestTest, ReadsItsOwnText) {
  const absl::StatusOr<Manifest> m = ParseManifest("manifest.json", kText);
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->job_id, "lenet-\"q\"-7k2q");
  EXPECT_EQ(m->lineage, 3);
  EXPECT_EQ(m->step, 500);
  ASSERT_EQ(m->files.size(), 2u);
  EXPECT_EQ(m->files[1].name, "weights.safetensors");
  EXPECT_EQ(m->files[0].size_bytes, 1234);
  EXPECT_EQ(m->samples_used, 64000);
  EXPECT_EQ(m->training_digest, "def");
  EXPECT_EQ(m->lead_snapshot, std::string("\x00\x01\xfe\xff", 4));
  EXPECT_THAT(m->orders, testing::ElementsAre(4, 9));
  EXPECT_EQ(*EncodeManifest(*m), kText);
}

TEST(ManifestTest, ReadsOneWithoutFilesOrWeights) {
  Manifest m = Example();
  m.files.clear();
  m.orders.clear();
  m.weights_sha256.clear();
  const absl::StatusOr<std::string> text = EncodeManifest(m);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE(ParseManifest("manifest.json", *text).ok());
}

TEST(ManifestTest, DamageIsDataLossThatNamesTheCheck) {
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } kCases[] = {
      {"\"format_version\": 2", "\"format_version\": 1", "format_version is 1, want 2"},
      {"\"lineage\": 3", "\"lineage\": -3", "'lineage' is not an integer"},
      {"\"lineage\": 3", "\"lineage\": 3.0", "'lineage' is not an integer"},
      {"\"lineage\": 3", "\"lineage\": 9223372036854775808", "'lineage' is not an integer"},
      {"\"lineage\": 3,", "", "lacks 'lineage'"},
      {"\"lineage\": 3,", "\"lineage\": 3, \"lineage\": 4,", "duplicate key 'lineage'"},
      {"\"lineage\": 3,", "\"lineage\": 3, \"linage\": 4,", "unknown key 'linage'"},
      {"\"job_id\": \"lenet-\\\"q\\\"-7k2q\"", "\"job_id\": \"\"", "'job_id' is empty"},
      {"shard-0.safetensors", "../shard-0.safetensors", "is not plain"},
      {"shard-0.safetensors", ".safetensors", "is not plain"},
      {"shard-0.safetensors", "weights.safetensors", "listed twice"},
      {"\"size_bytes\": 99", "\"size_bytes\": \"99\"", "'size_bytes' is not an integer"},
      {"\"sha256\": \"ba78", "\"sha256\": \"BA78", "want 64 hexadecimal digits"},
      {"[4, 9]", "[4, 4]", "an order is listed twice"},
      {"[4, 9]", "[4, -9]", "no id"},
      {"[4, 9]", "[[[[4]]]]", "nested deeper than 3"},
      {"[4, 9]", "{}", "'orders' is not an array"},
      {"\"AAH+/w==\"", "\"A-!\"", "'lead_snapshot' is not base64"},
      {"\"AAH+/w==\"", "\"AAH+/g==\"", "not those of 'manifest_sha256'"},
      {"\"step\": 500", "\"step\": 501", "not those of 'manifest_sha256'"},
      {"\"0.1.0\"", "\"\xff\"", "not JSON at byte"},
      {"}\n", "} x", "not JSON at byte"},
      {"{\n  \"format", "[\n  \"format", "not JSON at byte"},
  };
  for (const auto& c : kCases) {
    const std::string text = absl::StrReplaceAll(kText, {{c.from, c.to}});
    ASSERT_NE(text, kText) << c.from;
    const absl::Status status = ParseManifest("job/2-7/manifest.json", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.to;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("job/2-7/manifest.json: "));
  }
}

TEST(ManifestTest, EveryTruncationIsRefused) {
  const std::string text = kText;
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_FALSE(ParseManifest("manifest.json", text.substr(0, size)).ok()) << size;
  }
}

TEST(ManifestTest, EveryFlippedBitIsRefused) {
  for (size_t i = 0; i < sizeof(kText) - 1; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = kText;
      text[i] = static_cast<char>(text[i] ^ (1 << bit));
      EXPECT_FALSE(ParseManifest("manifest.json", text).ok()) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(ManifestTest, WritesNothingThatItWouldNotRead) {
  Manifest m = Example();
  m.files[0].name = "a/b";
  EXPECT_EQ(EncodeManifest(m).status().code(), absl::StatusCode::kInvalidArgument);
  m = Example();
  m.step = -1;
  EXPECT_EQ(EncodeManifest(m).status().code(), absl::StatusCode::kInvalidArgument);
  m = Example();
  m.optimizer = "\xff";
  EXPECT_EQ(EncodeManifest(m).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace capstan::training
