#include "gpu_worker/data/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/idx_test_files.h"
#include "gpu_worker/data/npz_test_files.h"
#include "gpu_worker/data/test_memory_source.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kNpzBytes[] = "\x00\xff\x01\x02\x80\x33\x10\x20\x30\x40\x50\x60";

std::string Numbers(size_t count) { return {kNpzBytes, count}; }

// 3 training samples of 2 x 2 pixels and 1 test sample.
std::vector<ZipTestMember> ByteMembers() {
  return {{"x_train.npy", Npy("|u1", "(3, 2, 2)", Numbers(12))},
          {"y_train.npy", Npy("<i8", "(3,)", BytesOf<int64_t>({5, 0, 9}))},
          {"x_test.npy", Npy("|u1", "(1, 2, 2)", Numbers(4))},
          {"y_test.npy", Npy("|u1", "(1, 1)", "\x07")}};
}

// The same as floats.
std::vector<ZipTestMember> FloatMembers(bool wide) {
  const std::vector<double> train = {0, -1.5, 0.1, 3e38, 1e-45, 7};
  const std::vector<double> test = {1, 2};
  const auto array = [wide](const std::vector<double>& numbers, const std::string& shape) {
    if (wide) return Npy("<f8", shape, BytesOf(numbers));
    return Npy("<f4", shape, BytesOf(std::vector<float>(numbers.begin(), numbers.end())));
  };
  return {{"x_train.npy", array(train, "(3, 2)")},
          {"y_train.npy", Npy("<u2", "(3, 1)", BytesOf<uint16_t>({1, 0, 1}))},
          {"x_test.npy", array(test, "(1, 2)")},
          {"y_test.npy", Npy("|i1", "(1,)", BytesOf<int8_t>({1}))}};
}

DatasetOptions NpzOptions(const std::string& path) {
  DatasetOptions options;
  options.format = Format::kNpz;
  options.path_or_uri = "file://" + path;
  return options;
}

struct Samples {
  std::vector<float> images;
  std::vector<int32_t> labels;
  bool operator==(const Samples&) const = default;
};

Samples AllOf(const Dataset& set) {
  Samples all;
  std::vector<int64_t> indices(static_cast<size_t>(set.info().count));
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i);
  all.images.resize(indices.size() * static_cast<size_t>(set.info().image_size()));
  all.labels.resize(indices.size());
  EXPECT_TRUE(set.Read(indices, 0, all.images.data(), all.labels.data()).ok());
  return all;
}

// The status of opening both splits of a file in memory.
absl::Status NpzStatus(const std::string& bytes, int64_t memory = 1 << 20, int64_t classes = 10) {
  absl::StatusOr<ZipArchive> archive = ZipArchive::Open(std::make_unique<MemorySource>("f", bytes));
  if (!archive.ok()) return archive.status();
  for (const bool train : {true, false}) {
    const absl::StatusOr<NpzSplit> split =
        ReadNpzSplit(*archive, train, {.num_classes = classes, .memory_limit_bytes = memory});
    if (!split.ok()) return split.status();
    const absl::Status checked = CheckNpzImages(*archive, *split);
    const absl::Status read = split->header.is_bytes() ? ReadNpzBytes(*archive, *split).status()
                                                       : ReadNpzFloats(*archive, *split).status();
    EXPECT_EQ(checked, read);
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

void ExpectNpz(const std::vector<ZipTestMember>& members, absl::StatusCode code,
               const std::string& message) {
  const absl::Status status = NpzStatus(Zip(members));
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(FailureReason(status),
            code == absl::StatusCode::kDataLoss ? "DataMissing" : "InvalidSpec");
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("f: "));
}

void ExpectArray(const std::string& x_train, absl::StatusCode code, const std::string& message) {
  std::vector<ZipTestMember> members = ByteMembers();
  members[0].bytes = x_train;
  ExpectNpz(members, code, "f: x_train.npy: " + message);
}

TEST(NpzTest, ReadsBytesHoweverTheyAreStored) {
  const TempFolder folder;
  for (const bool deflate : {false, true}) {
    for (const bool zip64 : {false, true}) {
      std::vector<ZipTestMember> members = ByteMembers();
      for (ZipTestMember& member : members) {
        member.deflate = deflate;
        member.zip64 = zip64;
        member.zip64_too = zip64;
      }
      const DatasetOptions options = NpzOptions(
          folder.Write("set.npz", Zip(members, zip64 ? "a PK\x05\x06 text" : "", zip64)));
      const auto set = OpenDataset(options, Split::kTrain);
      ASSERT_TRUE(set.ok()) << set.status();
      EXPECT_EQ((*set)->info().count, 3);
      EXPECT_EQ((*set)->info().channels, 1);
      EXPECT_EQ((*set)->info().height, 2);
      EXPECT_EQ((*set)->info().width, 2);
      EXPECT_FALSE((*set)->byte_values().empty());
      uint8_t bytes[8];
      int32_t labels[2];
      ASSERT_TRUE((*set)->ReadBytes({2, 0}, 0, bytes, labels).ok());
      EXPECT_THAT(bytes, ElementsAre(0x30, 0x40, 0x50, 0x60, 0, 0xff, 1, 2));
      EXPECT_THAT(labels, ElementsAre(9, 5));
      const Samples all = AllOf(**set);
      EXPECT_EQ(all.images[4], 128.0f / 255.0f);

      const auto probe = ProbeDataset(options);
      ASSERT_TRUE(probe.ok()) << probe.status();
      EXPECT_EQ(probe->train.count, 3);
      EXPECT_EQ(probe->test.count, 1);
      EXPECT_EQ(probe->test.image_size(), 4);
    }
  }
}

TEST(NpzTest, BytesMayBeTokens) {
  const TempFolder folder;
  DatasetOptions options = NpzOptions(folder.Write("set.npz", Zip(ByteMembers())));
  options.tokens = true;
  const auto set = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(AllOf(**set).images[4], 128.0f);
  EXPECT_EQ((*set)->byte_values()[128], 128.0f);
}

TEST(NpzTest, ShapesAreVectorsImagesAndImagesWithChannels) {
  struct Case {
    const char* train;
    const char* test;
    int64_t channels, height, width;
  };
  for (const Case& c :
       {Case{"(3, 4)", "(1, 4)", 1, 1, 4}, Case{"(3, 1, 4)", "(1, 1, 4)", 1, 1, 4},
        Case{"(3, 4, 1)", "(1, 4, 1)", 1, 4, 1}, Case{"(3, 2, 2, 1)", "(1, 2, 2, 1)", 2, 2, 1}}) {
    const TempFolder folder;
    std::vector<ZipTestMember> members = ByteMembers();
    members[0].bytes = Npy("|u1", c.train, Numbers(12));
    members[2].bytes = Npy("|u1", c.test, Numbers(4));
    const auto probe = ProbeDataset(NpzOptions(folder.Write("set.npz", Zip(members))));
    ASSERT_TRUE(probe.ok()) << probe.status();
    EXPECT_EQ(probe->train.channels, c.channels);
    EXPECT_EQ(probe->train.height, c.height);
    EXPECT_EQ(probe->train.width, c.width);
  }
}

TEST(NpzTest, FloatsAreTakenAsTheyAre) {
  const TempFolder folder;
  for (const bool wide : {false, true}) {
    const auto set =
        OpenDataset(NpzOptions(folder.Write("set.npz", Zip(FloatMembers(wide)))), Split::kTrain);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_TRUE((*set)->byte_values().empty());
    const Samples all = AllOf(**set);
    EXPECT_THAT(all.images, ElementsAre(0.0f, -1.5f, 0.1f, 3e38f, 1e-45f, 7.0f));
    EXPECT_THAT(all.labels, ElementsAre(1, 0, 1));
    float image[2] = {9, 9};
    int32_t label = 9;
    EXPECT_EQ((*set)->Read({3}, 0, image, &label).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(image[0], 9);
  }
}

TEST(NpzTest, EveryTypeOfIntegersIsALabel) {
  const auto status = [](const std::string& descr, const std::string& numbers) {
    std::vector<ZipTestMember> members = ByteMembers();
    members[1].bytes = Npy(descr, "(3,)", numbers);
    return NpzStatus(Zip(members));
  };
  EXPECT_TRUE(status("|u1", BytesOf<uint8_t>({9, 0, 1})).ok());
  EXPECT_TRUE(status("|i1", BytesOf<int8_t>({9, 0, 1})).ok());
  EXPECT_TRUE(status("<u2", BytesOf<uint16_t>({9, 0, 1})).ok());
  EXPECT_TRUE(status("<i2", BytesOf<int16_t>({9, 0, 1})).ok());
  EXPECT_TRUE(status("<u4", BytesOf<uint32_t>({9, 0, 1})).ok());
  EXPECT_TRUE(status("<i4", BytesOf<int32_t>({9, 0, 1})).ok());
  EXPECT_TRUE(status("<u8", BytesOf<uint64_t>({9, 0, 1})).ok());
  EXPECT_TRUE(status("<i8", BytesOf<int64_t>({9, 0, 1})).ok());
  for (const auto& [descr, numbers, label] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"|i1", BytesOf<int8_t>({1, -1, 1}), "label -1 of sample 1"},
           {"<u2", BytesOf<uint16_t>({1, 1, 10}), "label 10 of sample 2"},
           {"<u8", BytesOf<uint64_t>({uint64_t{1} << 63, 1, 1}), "label 9223372036854775807"},
           {"<i8", BytesOf<int64_t>({int64_t{1} << 32, 1, 1}), "label 4294967296 of sample 0"}}) {
    const absl::Status wrong = status(descr, numbers);
    EXPECT_EQ(FailureReason(wrong), "InvalidSpec");
    EXPECT_THAT(std::string(wrong.message()), HasSubstr("f: y_train.npy: " + label));
    EXPECT_THAT(std::string(wrong.message()), HasSubstr("want 0 to 9 (num_classes is 10)"));
  }
}

// Two training samples with targets of two numbers, and a test sample.
std::vector<ZipTestMember> TargetMembers(bool wide) {
  std::vector<ZipTestMember> members = FloatMembers(wide);
  const auto array = [wide](const std::vector<double>& numbers, const std::string& shape) {
    if (wide) return Npy("<f8", shape, BytesOf(numbers));
    return Npy("<f4", shape, BytesOf(std::vector<float>(numbers.begin(), numbers.end())));
  };
  members[1].bytes = array({0.5, -2, 1e30, 0.1, 3, 4}, "(3, 2)");
  members[3].bytes = array({7, 8}, "(1, 2)");
  return members;
}

TEST(NpzTest, TargetsMayBeNumbers) {
  const TempFolder folder;
  for (const bool wide : {false, true}) {
    DatasetOptions options = NpzOptions(folder.Write("set.npz", Zip(TargetMembers(wide))));
    options.target_size = 2;
    const auto set = OpenDataset(options, Split::kTrain);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ((*set)->info().target_size, 2);
    EXPECT_EQ((*set)->info().num_classes, 0);
    float targets[4];
    ASSERT_TRUE((*set)->ReadTargets({2, 0}, targets).ok());
    EXPECT_THAT(targets, ElementsAre(3, 4, 0.5f, -2));
    EXPECT_THAT(AllOf(**set).labels, ElementsAre(0, 0, 0));
    EXPECT_EQ((*set)->ReadTargets({3}, targets).code(), absl::StatusCode::kInvalidArgument);
    const auto probe = ProbeDataset(options);
    ASSERT_TRUE(probe.ok()) << probe.status();
    EXPECT_EQ(probe->test.target_size, 2);
    // Transforms concern the image alone.
    options.transforms = {Normalize{{1}, {2}}};
    const auto normalized = OpenDataset(options, Split::kTest);
    ASSERT_TRUE(normalized.ok()) << normalized.status();
    ASSERT_TRUE((*normalized)->ReadTargets({0}, targets).ok());
    EXPECT_EQ(targets[1], 8);
  }
  const auto classes =
      OpenDataset(NpzOptions(folder.Write("c.npz", Zip(FloatMembers(false)))), Split::kTrain);
  ASSERT_TRUE(classes.ok()) << classes.status();
  float none = 0;
  EXPECT_EQ((*classes)->ReadTargets({0}, &none).code(), absl::StatusCode::kFailedPrecondition);
}

// A growing vector would need up to three times their memory.
TEST(NpzTest, TargetsAreHeldOnce) {
  constexpr int64_t kSamples = 300000;  // more than are read at a time
  const std::string shape = absl::StrCat("(", kSamples, ", 1)");
  std::vector<ZipTestMember> members = FloatMembers(false);
  members[0].bytes = Npy("|u1", shape, std::string(kSamples, 'x'));
  members[1].bytes = Npy("<f4", shape, std::string(4 * kSamples, '\0'));
  const TempFolder folder;
  auto file = OpenDataPath(folder.Write("set.npz", Zip(members)), {});
  ASSERT_TRUE(file.ok()) << file.status();
  const auto archive = ZipArchive::Open(*std::move(file));
  ASSERT_TRUE(archive.ok()) << archive.status();
  const auto split = ReadNpzSplit(*archive, /*train=*/true, {.target_size = 1});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->targets.size(), static_cast<size_t>(kSamples));
  EXPECT_EQ(split->targets.capacity(), split->targets.size());
}

TEST(NpzTest, OneNumberIsATargetWithoutAnAxis) {
  const TempFolder folder;
  for (const char* const shape : {"(3,)", "(3, 1)"}) {
    std::vector<ZipTestMember> members = FloatMembers(false);
    members[1].bytes = Npy("<f4", shape, BytesOf<float>({1.5, 2.5, 3.5}));
    members[3].bytes = Npy("<f4", "(1,)", BytesOf<float>({0}));
    DatasetOptions options = NpzOptions(folder.Write("set.npz", Zip(members)));
    options.target_size = 1;
    const auto set = OpenDataset(options, Split::kTrain);
    ASSERT_TRUE(set.ok()) << set.status();
    float target = 0;
    ASSERT_TRUE((*set)->ReadTargets({1}, &target).ok());
    EXPECT_EQ(target, 2.5f);
  }
}

TEST(NpzTest, TargetsThatAreNoNumbersAreNamed) {
  const TempFolder folder;
  const auto message = [&folder](const std::string& y_train, int64_t size) {
    std::vector<ZipTestMember> members = TargetMembers(false);
    members[1].bytes = y_train;
    DatasetOptions options = NpzOptions(folder.Write("set.npz", Zip(members)));
    options.target_size = size;
    const absl::Status status = ProbeDataset(options).status();
    EXPECT_EQ(OpenDataset(options, Split::kTrain).status(), status);
    return std::string(status.message());
  };
  const std::string two = Npy("<f4", "(3, 2)", BytesOf<float>({1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(message(two, 3), HasSubstr("y_train.npy: array of 3 x 2, 2 numbers for each sample, "
                                         "'model.num_outputs' is 3"));
  EXPECT_THAT(message(Npy("<i8", "(3,)", BytesOf<int64_t>({1, 2, 3})), 1),
              HasSubstr("y_train.npy: type '<i8' (classes), want float32 or float64, as "
                        "'training.loss' is mean_squared_error"));
  EXPECT_THAT(message(Npy("<f4", "(2, 2)", BytesOf<float>({1, 2, 3, 4})), 2),
              HasSubstr("y_train.npy: array of 2 x 2, but "));
  EXPECT_THAT(message(Npy("<f4", "(3, 2, 1)", BytesOf<float>({1, 2, 3, 4, 5, 6})), 2),
              HasSubstr("y_train.npy: array of 3 x 2 x 1, but "));
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_THAT(message(Npy("<f4", "(3, 2)", BytesOf<float>({1, 2, 3, infinite, 5, 6})), 2),
              HasSubstr("y_train.npy: number 1 of sample 1 is not finite as float32"));
  // A classifier refuses numbers and names the loss that takes them.
  EXPECT_THAT(message(two, 0), HasSubstr("y_train.npy: type '<f4', want integers (classes), or "
                                         "'training.loss' mean_squared_error"));
}

TEST(NpzTest, WhatIsNotHeldIsReadFromTheFile) {
  for (const int kind : {0, 1, 2}) {
    const TempFolder folder;
    const std::string path =
        folder.Write("set.npz", Zip(kind == 0 ? ByteMembers() : FloatMembers(kind == 2)));
    DatasetOptions options = NpzOptions(path);
    const auto held = OpenDataset(options, Split::kTrain);
    options.memory_limit_bytes = kind == 0 ? 23 : 35;  // the labels fit, one byte is missing
    const auto left = OpenDataset(options, Split::kTrain);
    ASSERT_TRUE(held.ok() && left.ok()) << left.status();
    EXPECT_EQ(AllOf(**left), AllOf(**held));
    EXPECT_TRUE(ProbeDataset(options).ok());
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::hours(1));
    std::vector<float> image(4);
    int32_t label = 0;
    const absl::Status changed = (*left)->Read({1}, 0, image.data(), &label);
    EXPECT_EQ(FailureReason(changed), "DataMissing");
    EXPECT_EQ(changed.message(), path + ": has changed since it was opened");
    EXPECT_TRUE((*held)->Read({1}, 0, image.data(), &label).ok());
  }
}

TEST(NpzTest, PackedImagesBeyondTheLimitOfMemoryAreRefused) {
  const TempFolder folder;
  std::vector<ZipTestMember> members = ByteMembers();
  members[0].deflate = true;
  DatasetOptions options = NpzOptions(folder.Write("set.npz", Zip(members)));
  options.memory_limit_bytes = 24;
  EXPECT_TRUE(OpenDataset(options, Split::kTrain).ok());
  options.memory_limit_bytes = 23;
  for (const absl::Status& status :
       {ProbeDataset(options).status(), OpenDataset(options, Split::kTrain).status()}) {
    EXPECT_EQ(FailureReason(status), "InvalidSpec");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("x_train.npy: 3 samples of 1 x 2 x 2 need 24 bytes of memory, limit 23; "
                          "numpy.savez stores arrays unpacked"));
  }
  EXPECT_THAT(std::string(NpzStatus(Zip(ByteMembers()), 11).message()),
              HasSubstr("y_train.npy: 3 labels of 4 bytes need more than the limit of memory, 11"));
}

// Claims that are too small or too large are found. 24 MiB of zeros in 25 KiB are refused by their
// claim: the damage in their middle, which is found where the limit allows them, is not reached.
TEST(NpzTest, ABombIsNotUnpacked) {
  std::vector<ZipTestMember> members = ByteMembers();
  members[0].deflate = true;
  members[0].bytes = Npy("|u1", "(3, 2, 2)", Numbers(12)) + std::string(1 << 20, '\0');
  members[0].claim = 128 + 12;
  ExpectNpz(members, absl::StatusCode::kDataLoss,
            "x_train.npy: unpacks to more than the 140 bytes that the directory says");
  members = ByteMembers();
  members[0].deflate = true;
  members[0].claim = 141;
  ExpectNpz(members, absl::StatusCode::kDataLoss, "array of 3 x 2 x 2 numbers of 1 bytes in 13");
  members[0].bytes = Npy("|u1", "(3, 2, 2)", Numbers(11));
  members[0].claim = 140;
  ExpectNpz(members, absl::StatusCode::kDataLoss,
            "x_train.npy: unpacks to 139 bytes, the directory says 140");
  members[0].claim = 4000000000;
  ExpectNpz(members, absl::StatusCode::kDataLoss, "the directory says 4000000000 bytes");

  const TempFolder folder;
  members = ByteMembers();
  members[0] = {"x_train.npy", Npy("|u1", "(3, 1024, 8192)", std::string(24 << 20, '\0')), true};
  std::string bytes = Zip(members);
  ASSERT_LT(bytes.size(), size_t{32} << 10);
  bytes[bytes.size() / 2] ^= '\xff';
  DatasetOptions options = NpzOptions(folder.Write("set.npz", bytes));
  EXPECT_EQ(FailureReason(OpenDataset(options, Split::kTrain).status()), "DataMissing");
  options.memory_limit_bytes = 8 << 20;
  EXPECT_EQ(FailureReason(OpenDataset(options, Split::kTrain).status()), "InvalidSpec");
}

TEST(NpzTest, WhatIsNoSetIsNamed) {
  constexpr absl::StatusCode kDamage = absl::StatusCode::kDataLoss;
  constexpr absl::StatusCode kMisfit = absl::StatusCode::kInvalidArgument;
  const std::string bytes = Numbers(12);
  ExpectArray(Npy("|O", "(3, 2, 2)", bytes), kMisfit,
              "holds Python objects (type '|O', pickle), which are never read");
  ExpectArray(Npy(">f4", "(3, 1)", bytes), kMisfit, "type '>f4' is big-endian");
  ExpectArray(Npy("<c8", "(3, 1)", bytes), kMisfit, "type '<c8' is not read, want integers");
  ExpectArray(Npy("<u4", "(3, 1)", bytes), kMisfit, "type '<u4', want uint8, float32 or float64");
  ExpectArray(
      NpyOfHeader("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", bytes),
      kMisfit, "holds records");
  ExpectArray(NpyOfHeader("{'descr': '|u1', 'fortran_order': True, 'shape': (3, 2, 2), }", bytes),
              kMisfit, "is in Fortran order, want C order");
  ExpectArray(Npy("|u1", "(12,)", bytes), kMisfit, "array of 12, want samples x features");
  ExpectArray(Npy("|u1", "()", bytes.substr(0, 1)), kMisfit, "array of (), want samples");
  ExpectArray(Npy("|u1", "(1, 1, 1, 3, 4)", bytes), kMisfit, "array of 1 x 1 x 1 x 3 x 4, want");
  ExpectArray(Npy("|u1", "(0, 4)", ""), kMisfit, "holds no sample");
  ExpectArray(Npy("|u1", "(3, 0)", ""), kMisfit, "array of 3 x 0, want 1 to 1048576 features");
  ExpectArray(Npy("|u1", "(1, 16385, 1)", std::string(16385, 'x')), kMisfit,
              "array of 1 x 16385 x 1, want 1 to 16384 each way");

  ExpectArray(Npy("|u1", "(3, 2, 3)", bytes), kDamage,
              "array of 3 x 2 x 3 numbers of 1 bytes in 12 bytes");
  ExpectArray(Npy("<f8", "(4611686018427387904, 4611686018427387904)", bytes), kDamage,
              "array of 4611686018427387904 x 4611686018427387904 numbers of 8 bytes in 12 bytes");
  ExpectArray(Npy("<f8", "(99999999999999999999, 1)", bytes), kDamage,
              "header '{\\'descr\\': \\'<f8\\', \\'fortran_order\\': False, \\'shape\\': "
              "(99999999999999999999, 1), }' is not that of an array");
  ExpectArray(Npy("|u1", "(3, 2, 2)", bytes, 4), kDamage, "format 4.0, want 1.0, 2.0 or 3.0");
  ExpectArray("PK..........", kDamage, "does not begin with \\x93NUMPY");
  ExpectArray("\x93NUMPY", kDamage, "ends inside the header");
  for (const char* dict :
       {"", "{", "{}", "{'descr': '|u1', 'fortran_order': False}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, -2, 2), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2, }",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': (3, 2, 2), }",
        "{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2), 'x': 1}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2), } + 1",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), }",
        "__import__('os').system('true')"}) {
    ExpectArray(NpyOfHeader(dict, bytes), kDamage, "header '");
  }
  // What Python would also read as the same dict.
  std::vector<ZipTestMember> members = ByteMembers();
  members[0].bytes =
      NpyOfHeader("{\"shape\":(3,2,2),\"fortran_order\":False,\"descr\":\"|u1\"}", bytes, 3);
  EXPECT_TRUE(NpzStatus(Zip(members)).ok());
  members[0].bytes = Npy("|u1", "(3, 2, 2)", bytes, 2);
  EXPECT_TRUE(NpzStatus(Zip(members)).ok());

  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectArray(Npy("<f4", "(3, 2)", BytesOf<float>({1, 2, 3, nan, 5, 6})), kDamage,
              "number 1 of sample 1 is not finite as float32");
  ExpectArray(Npy("<f8", "(3, 1)", BytesOf<double>({1, 2, 1e39})), kDamage,
              "number 0 of sample 2 is not finite as float32");

  for (size_t i = 0; i < 4; ++i) {
    members = ByteMembers();
    members.erase(members.begin() + static_cast<int64_t>(i));
    ExpectNpz(members, kDamage,
              absl::StrCat("has no array ", i % 2 == 0 ? "x" : "y", "_", i < 2 ? "train" : "test"));
  }
  members = ByteMembers();
  members[1].bytes = Npy("<i8", "(2,)", BytesOf<int64_t>({1, 2}));
  ExpectNpz(members, kMisfit, "y_train.npy: array of 2, but f: x_train.npy has 3 samples");
  members[1].bytes = Npy("<i8", "(3, 2)", BytesOf<int64_t>({1, 2, 3, 4, 5, 6}));
  ExpectNpz(members, kMisfit, "y_train.npy: array of 3 x 2, but");
  members[1].bytes = Npy("<f4", "(3,)", BytesOf<float>({1, 2, 3}));
  ExpectNpz(members, kMisfit, "y_train.npy: type '<f4', want integers (classes)");
}

TEST(NpzTest, DamageOfTheArchiveIsNamed) {
  constexpr absl::StatusCode kDamage = absl::StatusCode::kDataLoss;
  std::vector<ZipTestMember> members = ByteMembers();
  members.push_back({"note.npy", "any bytes"});
  EXPECT_TRUE(NpzStatus(Zip(members)).ok());
  members.push_back({"note.npy", "again"});
  ExpectNpz(members, kDamage, "two members are named 'note.npy'");
  members = ByteMembers();
  members[0].flags = 1;
  ExpectNpz(members, kDamage, "x_train.npy: is encrypted");
  members[0].flags = 8;  // the sizes also follow the data
  EXPECT_TRUE(NpzStatus(Zip(members)).ok());
  members = ByteMembers();
  members[0].method = 14;
  ExpectNpz(members, kDamage, "x_train.npy: is packed by method 14, want 0 (stored) or 8");
  members = ByteMembers();
  members[0].claim = 139;
  ExpectNpz(members, kDamage, "x_train.npy: is stored with 140 bytes, the directory says 139");

  const auto expect = [](const std::string& bytes, const std::string& message) {
    const absl::Status status = NpzStatus(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  const std::string good = Zip(ByteMembers());
  expect("", "not a zip, or truncated");
  expect("x", "not a zip, or truncated");
  expect(good + "x", "not a zip, or truncated");
  expect("x" + good, "want its end at offset");
  std::string bytes = good;
  bytes[bytes.size() - 22 + 4] = 1;
  expect(bytes, "a zip in several parts");
  bytes = good;
  bytes[0] ^= 1;
  expect(bytes, "f: x_train.npy: no header at offset 0");
  bytes = good;
  bytes[30] ^= 1;  // the name in the local header
  expect(bytes, "x_train.npy: its header at offset 0 contradicts the directory");
  bytes = good;
  bytes[30 + 11 + 128] ^= 1;  // the first pixel
  expect(bytes, "x_train.npy: CRC-32 ");
  const std::string end64 = Zip(ByteMembers(), "", true);
  bytes = end64;
  bytes[bytes.size() - 22 - 20 - 56] ^= 1;
  expect(bytes, "no end of a zip64 directory at offset");
  expect(end64.substr(end64.size() - 22), "no room for a zip64 directory");
  // A directory that would need more memory than any set of arrays.
  std::vector<ZipTestMember> many;
  for (int i = 0; i < 20; ++i) many.push_back({absl::StrCat(i, std::string(60000, 'n')), ""});
  const absl::Status status = NpzStatus(Zip(many));
  EXPECT_EQ(FailureReason(status), "InvalidSpec");
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit 1048576"));
}

TEST(NpzTest, EveryTruncationIsDamage) {
  for (const bool end64 : {false, true}) {
    std::vector<ZipTestMember> members = ByteMembers();
    members[0].deflate = end64;
    const std::string bytes = Zip(members, "", end64);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(FailureReason(NpzStatus(bytes.substr(0, size))), "DataMissing") << size;
    }
    EXPECT_TRUE(NpzStatus(bytes).ok());
  }
}

// The CRCs cover all arrays. Bytes outside of them, like times, change nothing that is read.
TEST(NpzTest, EveryFlippedBitIsNamedOrHarmless) {
  std::vector<ZipTestMember> members = ByteMembers();
  members[0].deflate = true;
  members[3].zip64 = members[3].zip64_too = true;
  const std::string good = Zip(members, "c", true);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    absl::StatusOr<ZipArchive> archive =
        ZipArchive::Open(std::make_unique<MemorySource>("f", bytes));
    absl::Status status = archive.status();
    if (status.ok()) {
      const absl::StatusOr<NpzSplit> split =
          ReadNpzSplit(*archive, true, {.memory_limit_bytes = 1 << 20});
      status = split.status();
      if (status.ok()) {
        const auto pixels = ReadNpzBytes(*archive, *split);
        status = pixels.status();
        if (status.ok()) {
          EXPECT_EQ(split->count, 3) << bit;
          EXPECT_EQ(split->image_size(), 4) << bit;
          EXPECT_THAT(split->labels, ElementsAre(5, 0, 9)) << bit;
          EXPECT_EQ(std::string(reinterpret_cast<const char*>(pixels->get()), 12), Numbers(12));
        }
      }
    }
    if (!status.ok()) {
      EXPECT_NE(FailureReason(status), "") << bit << " " << status;
    }
  }
}

TEST(NpzTest, BothSplitsHaveSamplesOfOneKind) {
  const TempFolder folder;
  const auto expect = [&folder](const std::vector<ZipTestMember>& members,
                                const std::string& message) {
    const absl::Status status =
        ProbeDataset(NpzOptions(folder.Write("set.npz", Zip(members)))).status();
    EXPECT_EQ(FailureReason(status), "InvalidSpec");
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  std::vector<ZipTestMember> members = ByteMembers();
  members[2].bytes = Npy("|u1", "(1, 4, 1)", Numbers(4));
  expect(members, "x_train.npy: array of 3 x 2 x 2 '|u1', but ");
  members[2].bytes = Npy("<f4", "(1, 2, 2)", BytesOf<float>({1, 2, 3, 4}));
  expect(members, "x_test.npy has 1 x 2 x 2 '<f4'; want samples of one shape, all of bytes");
  members = FloatMembers(true);
  members[2] = FloatMembers(false)[2];
  EXPECT_TRUE(ProbeDataset(NpzOptions(folder.Write("set.npz", Zip(members)))).ok());
}

TEST(NpzTest, TheUriIsTheFileInsideTheRoots) {
  const TempFolder folder;
  DatasetOptions options = NpzOptions(folder.Write("set.npz", Zip(ByteMembers())));
  options.roots = {folder.path()};
  EXPECT_TRUE(ProbeDataset(options).ok());
  options.roots = {"/nowhere"};
  EXPECT_THAT(std::string(ProbeDataset(options).status().message()),
              HasSubstr("escapes the data root"));
  options = NpzOptions(folder.path());
  EXPECT_THAT(std::string(ProbeDataset(options).status().message()),
              HasSubstr("not a regular file"));
  options = NpzOptions(folder.path() + "/absent.npz");
  EXPECT_EQ(ProbeDataset(options).status().code(), absl::StatusCode::kNotFound);
}

TEST(NpzTest, TransformsRunOnFloats) {
  const TempFolder folder;
  DatasetOptions options = NpzOptions(folder.Write("set.npz", Zip(FloatMembers(false))));
  options.transforms = {Normalize{{1.0f}, {2.0f}}};
  const auto set = OpenDataset(options, Split::kTest);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_TRUE((*set)->byte_values().empty());
  EXPECT_THAT(AllOf(**set).images, ElementsAre(0.0f, 0.5f));
}

}  // namespace
}  // namespace capstan::data
