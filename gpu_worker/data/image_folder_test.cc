#include "gpu_worker/data/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/picture_test_files.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A folder with images in train/ and test/ of the classes a and b.
class ImageFolderTest : public ::testing::Test {
 protected:
  ImageFolderTest() {
    for (const char* image :
         {"train/b/1.png", "train/a/2.png", "train/a/10.PNG", "test/a/x.png", "test/b/y.jpeg"}) {
      Write(image, PngOf(1, 1, 1, std::string(1, image[image[1] == 'r' ? 8 : 7])));
    }
  }

  std::string Path(const std::string& name = "") const {
    return name.empty() ? folder_.path() : folder_.path() + "/" + name;
  }
  void Write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    folder_.Write(name, bytes);
  }
  void Remove(const std::string& name) const { std::filesystem::remove_all(Path(name)); }

  DatasetOptions Options(int64_t classes = 2) const {
    DatasetOptions options;
    options.format = Format::kImageFolder;
    options.path_or_uri = Path();
    options.num_classes = classes;
    options.shape = {1, 1, 1};
    return options;
  }

  void ExpectRefused(const std::string& reason, const std::string& message,
                     int64_t classes = 2) const {
    const absl::Status status = ProbeDataset(Options(classes)).status();
    EXPECT_EQ(FailureReason(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

 private:
  const TempFolder folder_;
};

TEST_F(ImageFolderTest, ClassesAndImagesAreInTheOrderOfTheirBytes) {
  Write("train/.cache/x.png", "hidden");
  Write("train/a/.DS_Store", "hidden");
  Write("train/B/z.jpg", PngOf(1, 1, 1, "z"));  // "B" is before "a"
  Write("test/B/z.jpg", PngOf(1, 1, 1, "z"));
  const auto names = ListImageFolder({.folder = Path(), .num_classes = 3}, /*train=*/true);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(names->classes(), ElementsAre("B", "a", "b"));
  std::vector<std::string> paths;
  std::vector<int> labels;
  for (int64_t i = 0; i < names->count(); ++i) {
    paths.push_back(names->Path(i).substr(Path().size()));
    labels.push_back(names->Label(i));
  }
  EXPECT_THAT(paths,
              ElementsAre("/train/B/z.jpg", "/train/a/10.PNG", "/train/a/2.png", "/train/b/1.png"));
  EXPECT_THAT(labels, ElementsAre(0, 1, 1, 2));
}

TEST_F(ImageFolderTest, ImagesAreDecodedWhenTheyAreRead) {
  for (const int64_t hold : {int64_t{0}, int64_t{1} << 20}) {
    DatasetOptions options = Options();
    options.hold_bytes = hold;
    const auto probe = ProbeDataset(options);
    ASSERT_TRUE(probe.ok()) << probe.status();
    EXPECT_EQ(probe->train.count, 3);
    EXPECT_EQ(probe->test.count, 2);
    EXPECT_EQ(probe->train.num_classes, 2);
    const auto set = OpenDataset(options, Split::kTrain);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_FALSE((*set)->byte_values().empty());
    std::vector<uint8_t> images(3);
    std::vector<int32_t> labels(3);
    ASSERT_TRUE((*set)->ReadBytes({2, 0, 1}, 0, images.data(), labels.data()).ok());
    EXPECT_EQ(std::string(images.begin(), images.end()), "112");
    EXPECT_THAT(labels, ElementsAre(1, 0, 0));
    const auto test = OpenDataset(options, Split::kTest);
    ASSERT_TRUE(test.ok()) << test.status();
    ASSERT_TRUE((*test)->ReadBytes({0, 1}, 0, images.data(), labels.data()).ok());
    EXPECT_EQ(std::string(images.begin(), images.begin() + 2), "xy");
  }
}

TEST_F(ImageFolderTest, SmallSetsAreDecodedOnce) {
  DatasetOptions options = Options();
  const auto held = OpenDataset(options, Split::kTrain);
  options.hold_bytes = 0;
  const auto read = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(held.ok() && read.ok());
  uint8_t pixel = 0;
  int32_t label = 0;
  ASSERT_TRUE((*held)->ReadBytes({1}, 0, &pixel, &label).ok());
  Write("train/a/2.png", PngOf(1, 1, 1, "?"));
  ASSERT_TRUE((*held)->ReadBytes({1}, 1, &pixel, &label).ok());
  EXPECT_EQ(pixel, '2');
  ASSERT_TRUE((*read)->ReadBytes({1}, 1, &pixel, &label).ok());
  EXPECT_EQ(pixel, '?');
}

TEST_F(ImageFolderTest, ManyThreadsReadTheSame) {
  const auto set = OpenDataset(Options(), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  std::vector<std::string> seen(4);
  std::vector<std::thread> threads;
  for (std::string& pixels : seen) {
    threads.emplace_back([&set, &pixels] {
      for (int64_t i = 0; i < 30; ++i) {
        uint8_t pixel = 0;
        int32_t label = 0;
        const bool ok = (*set)->ReadBytes({i % 3}, 0, &pixel, &label).ok();
        pixels += ok ? static_cast<char>(pixel) : '-';
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string want;
  for (int i = 0; i < 10; ++i) want += "121";
  EXPECT_THAT(seen, testing::Each(want));
}

TEST_F(ImageFolderTest, ADamagedImageIsNamed) {
  const auto set = OpenDataset(Options(), Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  uint8_t pixel = 0;
  int32_t label = 0;
  const auto expect = [&](const std::string& reason, const std::string& message) {
    const absl::Status status = (*set)->ReadBytes({1}, 0, &pixel, &label);
    EXPECT_EQ(FailureReason(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("train/a/2.png: ") + message));
  };
  const std::string png = PngOf(1, 1, 1, "2");
  Write("train/a/2.png", png.substr(0, png.size() - 1));
  expect("DataMissing", "PNG: the file ends too early");
  Write("train/a/2.png", "");
  expect("DataMissing", "empty, want a JPEG or a PNG");
  Write("train/a/2.png", "%PDF-");
  expect("InvalidSpec", "begins with 25 50 44 46, so it is neither JPEG nor PNG");
  Remove("train/a/2.png");
  expect("DataMissing", "No such file or directory");
  std::filesystem::create_directory(Path("train/a/2.png"));
  expect("DataMissing", "not a regular file");
  Remove("train/a/2.png");
  Write("train/a/2.png", "");
  std::filesystem::resize_file(Path("train/a/2.png"), (128 << 20) + 1);
  expect("InvalidSpec", "134217729 bytes, want at most 134217728");
  Write("train/a/2.png", png);
  EXPECT_TRUE((*set)->ReadBytes({1}, 0, &pixel, &label).ok());
  // The first image of each split is read before anything starts.
  Write("test/a/x.png", "GIF89a");
  ExpectRefused("InvalidSpec", Path("test/a/x.png: begins with 47 49 46 38"));
}

TEST_F(ImageFolderTest, OtherClassesThanTheModelHasAreRefused) {
  ExpectRefused("InvalidSpec", Path("train: holds 2 classes, but model.num_classes is 3"), 3);
  ExpectRefused("InvalidSpec", Path("train: holds 2 classes, but model.num_classes is 1"), 1);
  Write("test/c/1.png", "");
  ExpectRefused("InvalidSpec", Path("test: has the class 'c', which ") + Path("train lacks"));
  Remove("test/c");
  Remove("test/a");
  ExpectRefused("InvalidSpec", Path("train: has the class 'a', which ") + Path("test lacks"));
}

TEST_F(ImageFolderTest, WhatIsNeitherClassNorImageIsRefused) {
  const auto refused = [this](const std::string& name, const std::string& message) {
    Write(name, "");
    ExpectRefused("InvalidSpec", Path(name + ": " + message));
    Remove(name);
  };
  refused("train/notes.txt", "a file, want folders with a class each");
  refused("test/1.png", "a file, want folders");
  refused("train/a/notes.txt", "want names that end in .jpg, .jpeg or .png");
  refused("train/a/1.gif", "want names");
  refused("train/a/png", "want names");
  Write("train/a/more/1.png", "");
  ExpectRefused("InvalidSpec", Path("train/a/more: a folder, want the images of a class"));
  Remove("train/a/more");
  Remove("train/b/1.png");
  ExpectRefused("InvalidSpec", Path("train/b: holds no image"));
}

TEST_F(ImageFolderTest, ValStandsInForTest) {
  std::filesystem::rename(Path("test"), Path("val"));
  const auto probe = ProbeDataset(Options());
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->test.count, 2);
  Write("test/a/1.png", PngOf(1, 1, 1, "1"));  // counts if both are there
  ExpectRefused("InvalidSpec", Path("test lacks"));
  Remove("test");
  Remove("val");
  ExpectRefused("DataMissing", Path("test: no such folder, nor ") + Path("val"));
  Remove("train");
  ExpectRefused("DataMissing", Path("train: No such file or directory"));
}

TEST_F(ImageFolderTest, LinksStayInsideTheRoots) {
  const TempFolder outside;
  outside.Write("o.png", PngOf(1, 1, 1, "o"));
  std::filesystem::create_symlink(outside.path() + "/o.png", Path("train/a/1.png"));
  std::filesystem::create_symlink("2.png", Path("train/a/3.png"));
  DatasetOptions options = Options();
  options.roots = {Path()};
  options.hold_bytes = 0;
  // The first one is read when the set is opened.
  absl::Status status = OpenDataset(options, Split::kTrain).status();
  EXPECT_EQ(FailureReason(status), "InvalidSpec") << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(Path("train/a/1.png: dataset path escapes the data root")));
  Remove("train/a/1.png");
  auto set = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(set.ok()) << set.status();
  uint8_t pixel = 0;
  int32_t label = 0;
  ASSERT_TRUE((*set)->ReadBytes({2}, 0, &pixel, &label).ok());
  EXPECT_EQ(pixel, '2');
  // A folder that leads out is not even listed.
  Remove("train/b");
  std::filesystem::create_directory_symlink(outside.path(), Path("train/b"));
  status = OpenDataset(options, Split::kTrain).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(Path("train/b: dataset path escapes the data root")));
  options.roots = {outside.path()};
  status = OpenDataset(options, Split::kTrain).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("escapes the data root"));
  options.roots = {};
  EXPECT_TRUE(OpenDataset(options, Split::kTrain).ok());
}

TEST_F(ImageFolderTest, NamesHaveAMemoryLimit) {
  DatasetOptions options = Options();
  options.memory_limit_bytes = 200;
  const absl::Status status = OpenDataset(options, Split::kTrain).status();
  EXPECT_EQ(FailureReason(status), "InvalidSpec") << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("with this one the names need 2"));  // 64 bytes and the name for each
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes of memory or more, limit 200"));
  options.memory_limit_bytes = 1000;
  EXPECT_TRUE(OpenDataset(options, Split::kTrain).ok());
}

}  // namespace
}  // namespace capstan::data
