#include "gpu_worker/data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/test_memory_source.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMemory = 1 << 20;

// Owns the bytes that it lends, so that they live as long as the test's statement needs them.
struct Input {
  Input(std::string bytes_in, bool gzip) : bytes(std::move(bytes_in)) {
    source = std::make_unique<MemorySource>("f", bytes);
    if (gzip) source = GzipSource(std::move(source));
  }
  std::string bytes;
  std::unique_ptr<ByteSource> source;
};

absl::Status ImagesStatus(const std::string& bytes, bool gzip = false, int64_t memory = kMemory) {
  Input input(bytes, gzip);
  const absl::StatusOr<IdxImagesHeader> header = ReadIdxImagesHeader(*input.source);
  if (!header.ok()) return header.status();
  return ReadIdxPixels(*input.source, *header, memory).status();
}

absl::Status LabelsStatus(const std::string& bytes, bool gzip = false, int64_t memory = kMemory) {
  Input input(bytes, gzip);
  return ReadIdxLabels(*input.source, 10, memory).status();
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& reason,
                 const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(FailureReason(status), reason) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("f: "));
}

void ExpectDamage(const absl::Status& status, const std::string& message) {
  ExpectError(status, absl::StatusCode::kDataLoss, "DataMissing", message);
}

void ExpectMisfit(const absl::Status& status, const std::string& message) {
  ExpectError(status, absl::StatusCode::kInvalidArgument, "InvalidSpec", message);
}

TEST(IdxTest, ReadsImagesPlainAndPacked) {
  const std::string bytes = IdxImages(2, 1, 3, "abcdef");
  for (const bool gzip : {false, true}) {
    Input input(gzip ? Gzip(bytes) : bytes, gzip);
    const absl::StatusOr<IdxImagesHeader> header = ReadIdxImagesHeader(*input.source);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->count, 2);
    EXPECT_EQ(header->rows, 1);
    EXPECT_EQ(header->columns, 3);
    const auto pixels = ReadIdxPixels(*input.source, *header, kMemory);
    ASSERT_TRUE(pixels.ok()) << pixels.status();
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(pixels->get()), 6), "abcdef");
  }
}

TEST(IdxTest, ReadsLabelsPlainAndPacked) {
  const std::string bytes = IdxLabels(3, std::string("\x09\x00\x04", 3));
  for (const bool gzip : {false, true}) {
    Input input(gzip ? Gzip(bytes) : bytes, gzip);
    const auto labels = ReadIdxLabels(*input.source, 10, kMemory);
    ASSERT_TRUE(labels.ok()) << labels.status();
    EXPECT_THAT(*labels, ElementsAre(9, 0, 4));
  }
}

TEST(IdxTest, EveryTruncationIsDamage) {
  const std::string images = IdxImages(2, 1, 3, "abcdef"), packed = Gzip(images);
  for (size_t size = 0; size < images.size(); ++size) {
    ExpectDamage(ImagesStatus(images.substr(0, size)), "");
  }
  for (size_t size = 0; size < packed.size(); ++size) {
    ExpectDamage(ImagesStatus(packed.substr(0, size), true), "gzip truncated at offset");
  }
  ExpectDamage(LabelsStatus(IdxLabels(3, "\x01\x02")), "label count 3 needs 11 bytes, file has 10");
}

// The checksum of the trailer finds errors that the format itself cannot. It does not cover time,
// flags and system in gzip's header and the padding bits in the last byte of the stream, but these
// change no pixel.
TEST(IdxTest, EveryFlippedBitOfAPackedFileIsNamedOrHarmless) {
  std::string pixels;
  for (int i = 0; i < 300; ++i) pixels.push_back(static_cast<char>(i * i % 251));
  const std::string packed = Gzip(IdxImages(3, 10, 10, pixels));
  for (size_t bit = 0; bit < packed.size() * 8; ++bit) {
    std::string bytes = packed;
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    Input input(bytes, true);
    const auto header = ReadIdxImagesHeader(*input.source);
    if (!header.ok()) {
      EXPECT_NE(FailureReason(header.status()), "") << bit << " " << header.status();
      continue;
    }
    const auto got = ReadIdxPixels(*input.source, *header, kMemory);
    if (!got.ok()) {
      EXPECT_NE(FailureReason(got.status()), "") << bit << " " << got.status();
      continue;
    }
    ASSERT_EQ(header->pixels(), 300) << bit;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(got->get()), 300), pixels) << bit;
  }
}

TEST(IdxTest, DamageOfGzipIsNamed) {
  const std::string packed = Gzip(IdxImages(1, 2, 2, "abcd"));
  std::string bad_checksum = packed;
  bad_checksum[packed.size() - 8] ^= 1;
  ExpectDamage(ImagesStatus(bad_checksum, true), "incorrect data check");
  std::string bad_length = packed;
  bad_length[packed.size() - 4] ^= 1;
  ExpectDamage(ImagesStatus(bad_length, true), "incorrect length check");
  ExpectDamage(ImagesStatus(packed + "x", true),
               "bytes follow the end of the gzip data at offset " + std::to_string(packed.size()));
  ExpectDamage(ImagesStatus(IdxImages(1, 2, 2, "abcd"), true), "incorrect header check");
  ExpectDamage(ImagesStatus(Gzip(IdxImages(1, 2, 2, "abcde")), true),
               "bytes follow the data at offset 20");
  ExpectDamage(ImagesStatus(Gzip(IdxImages(1, 2, 2, "abc")), true), "the data end at 19");
}

TEST(IdxTest, WrongMagicIsNamedWithAGuess) {
  ExpectDamage(ImagesStatus(IdxLabels(8, "12345678")),
               "magic 0x00000801 at offset 0, want 0x00000803 (these are labels)");
  ExpectDamage(LabelsStatus(IdxImages(1, 1, 1, "a")), "(these are images)");
  ExpectDamage(ImagesStatus(Gzip(IdxImages(1, 1, 1, "a"))), "gzip without .gz");
  ExpectDamage(ImagesStatus("P5\n1 1\n255\na......"), "magic 0x50350a31");
}

TEST(IdxTest, AbsurdSizesAreRefusedBeforeAnythingIsAllocated) {
  ExpectDamage(ImagesStatus(IdxImages(0x7FFFFFFF, 28, 28, std::string(768, 'x'))),
               "image count 2147483647 of 28 x 28 pixels needs 1683627179264 bytes, file has 784");
  ExpectDamage(ImagesStatus(IdxImages(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, "")),
               "needs 2^63 or more bytes, file has 16");
  ExpectDamage(ImagesStatus(IdxImages(1, 2, 2, "abcde")), "bytes follow at offset 20");
  ExpectDamage(LabelsStatus(IdxLabels(0xFFFFFFFF, "\x01")),
               "label count 4294967295 needs 4294967303 bytes, file has 9");
  // Deflate compresses at most 1032 to 1.
  const std::string bomb = Gzip(IdxImages(0x7FFFFFFF, 28, 28, "x"));
  ExpectDamage(ImagesStatus(bomb, true, int64_t{1} << 50), std::to_string(bomb.size()) +
                                                               " bytes of gzip hold at most " +
                                                               std::to_string(bomb.size() * 1032));
  ExpectMisfit(ImagesStatus(IdxImages(1, 1, 40000, std::string(40000, 'x'))),
               "images of 1 x 40000 pixels, want 1 to 16384 each way");
}

TEST(IdxTest, MemoryIsBounded) {
  ExpectMisfit(ImagesStatus(IdxImages(2, 10, 10, std::string(200, 'x')), false, 199),
               "needs 200 bytes of memory, limit 199");
  ExpectMisfit(LabelsStatus(Gzip(IdxLabels(200, std::string(200, '\1'))), true, 199),
               "needs 200 bytes of memory, limit 199");
  EXPECT_TRUE(ImagesStatus(IdxImages(2, 10, 10, std::string(200, 'x')), false, 200).ok());
}

TEST(IdxTest, EmptySetsAndForeignLabelsDoNotFit) {
  ExpectMisfit(ImagesStatus(IdxImages(0, 28, 28, "")), "holds no image");
  ExpectMisfit(LabelsStatus(IdxLabels(0, "")), "holds no label");
  ExpectMisfit(ImagesStatus(IdxImages(3, 0, 28, "")), "images of 0 x 28 pixels");
  ExpectMisfit(LabelsStatus(IdxLabels(3, "\x01\x0A\x02")),
               "label 10 at offset 9, want 0 to 9 (num_classes is 10)");
}

}  // namespace
}  // namespace capstan::data
