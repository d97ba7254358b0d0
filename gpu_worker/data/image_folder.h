// Folders of images, in the layout of torchvision's ImageFolder:
//
//   <folder>/train/<class>/<image>   and   <folder>/test/<class>/<image>
//
// If there is no folder test, val is taken. Classes count from 0 in the order of their names'
// bytes, and both splits must have the same. An image's name ends in .jpg, .jpeg or .png, in any
// case; its first bytes decide how it is decoded (picture.h). Samples are in the order of classes
// and, within a class, of names. Names that begin with a dot are skipped. Everything else is
// refused by name, so that no image is left out unnoticed: other files, folders within a class, a
// class without an image. Links are followed as far as data_path.h allows.
//
// Threads: functions that use only the file system.
#ifndef CAPSTAN_GPU_WORKER_DATA_IMAGE_FOLDER_H_
#define CAPSTAN_GPU_WORKER_DATA_IMAGE_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::data {

struct ImageFolderOptions {
  std::string folder;  // with train and test
  std::vector<std::string> roots;
  int64_t num_classes = 10;
  int64_t memory_limit_bytes = int64_t{4} << 30;  // of the names of a split
};

// The names of a split's images: 13 bytes and the name for each.
class ImageNames {
 public:
  // `folder` contains the classes.
  ImageNames(std::string folder, std::vector<std::string> classes)
      : folder_(std::move(folder)), classes_(std::move(classes)) {}

  void Append(int32_t label, absl::string_view name) {
    begins_.push_back(static_cast<int64_t>(names_.size()));
    labels_.push_back(label);
    names_.append(name.data(), name.size());
    names_.push_back('\0');
  }

  int64_t count() const { return static_cast<int64_t>(labels_.size()); }
  int32_t Label(int64_t index) const { return labels_[index]; }
  std::string Path(int64_t index) const;
  const std::string& folder() const { return folder_; }
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  std::string folder_;
  std::vector<std::string> classes_;
  std::string names_;
  std::vector<int64_t> begins_;  // in names_
  std::vector<int32_t> labels_;
};

// Reads the names of a split. Opens no image. NotFound and others, DataMissing: a folder that is
// absent or cannot be read. InvalidArgument, InvalidSpec: another number of classes than
// num_classes, splits with other classes, what is refused above, names that need more than
// memory_limit_bytes. Throws bad_alloc.
absl::StatusOr<ImageNames> ListImageFolder(const ImageFolderOptions& options, bool train);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_IMAGE_FOLDER_H_
