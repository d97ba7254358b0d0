#include "gpu_worker/data/image_folder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/text_lines.h"

namespace capstan::data {
namespace {

constexpr int64_t kListBytes = 64;  // memory of a name while it is listed, without the name

bool IsImageName(absl::string_view name) {
  return absl::EndsWithIgnoreCase(name, ".jpg") || absl::EndsWithIgnoreCase(name, ".jpeg") ||
         absl::EndsWithIgnoreCase(name, ".png");
}

class FolderLister {
 public:
  explicit FolderLister(const ImageFolderOptions& options) : options_(options) {}

  // The names of the classes in `folder`, sorted.
  absl::StatusOr<std::vector<std::string>> Classes(const std::string& folder) {
    std::vector<std::string> classes;
    absl::Status status = ListDataFolder(
        folder, options_.roots, [&](absl::string_view name, FolderEntry kind) -> absl::Status {
          if (kind == FolderEntry::kFile) {
            return InvalidSpec(
                absl::StrCat(folder, "/", name, ": a file, want folders with a class each"));
          }
          absl::Status counted = Count(folder, name);
          if (!counted.ok()) return counted;
          classes.emplace_back(name);
          return counted;
        });
    if (!status.ok()) return status;
    std::sort(classes.begin(), classes.end());
    return classes;
  }

  // The names of the images in the folder of a class, sorted.
  absl::StatusOr<std::vector<std::string>> Images(const std::string& folder) {
    std::vector<std::string> images;
    absl::Status status = ListDataFolder(
        folder, options_.roots, [&](absl::string_view name, FolderEntry kind) -> absl::Status {
          if (kind == FolderEntry::kFolder) {
            return InvalidSpec(absl::StrCat(folder, "/", name,
                                            ": a folder, want the images of a class in its own"));
          }
          if (!IsImageName(name)) {
            return InvalidSpec(
                absl::StrCat(folder, "/", name, ": want names that end in .jpg, .jpeg or .png"));
          }
          absl::Status counted = Count(folder, name);
          if (!counted.ok()) return counted;
          images.emplace_back(name);
          return counted;
        });
    if (!status.ok()) return status;
    if (images.empty()) return InvalidSpec(absl::StrCat(folder, ": holds no image"));
    std::sort(images.begin(), images.end());
    return images;
  }

 private:
  absl::Status Count(const std::string& folder, absl::string_view name) {
    bytes_ += kListBytes + static_cast<int64_t>(name.size());
    if (bytes_ <= options_.memory_limit_bytes) return absl::OkStatus();
    return InvalidSpec(absl::StrCat(folder, "/", name, ": with this one the names need ", bytes_,
                                    " bytes of memory or more, limit ",
                                    options_.memory_limit_bytes));
  }

  const ImageFolderOptions& options_;
  int64_t bytes_ = 0;
};

// The first class that `a` has and `b` lacks, or nullptr.
const std::string* OneMissing(const std::vector<std::string>& a,
                              const std::vector<std::string>& b) {
  for (const std::string& name : a) {
    if (!std::binary_search(b.begin(), b.end(), name)) return &name;
  }
  return nullptr;
}

absl::Status OtherClasses(const std::string& has, const std::string& lacks,
                          const std::string& name) {
  return InvalidSpec(absl::StrCat(has, ": has the class ", Excerpt(name), ", which ", lacks,
                                  " lacks; both need the same classes"));
}

}  // namespace

std::string ImageNames::Path(int64_t index) const {
  return absl::StrCat(folder_, "/", classes_[static_cast<size_t>(labels_[index])], "/",
                      names_.c_str() + begins_[index]);
}

absl::StatusOr<ImageNames> ListImageFolder(const ImageFolderOptions& options, bool train) {
  FolderLister lister(options);
  const std::string base =
      absl::StrCat(options.folder, absl::EndsWith(options.folder, "/") ? "" : "/");
  std::string folder = base + "train";
  absl::StatusOr<std::vector<std::string>> classes = lister.Classes(folder);
  if (!classes.ok()) return classes.status();
  if (static_cast<int64_t>(classes->size()) != options.num_classes) {
    return InvalidSpec(absl::StrCat(folder, ": holds ", classes->size(),
                                    " classes, but model.num_classes is ", options.num_classes));
  }
  if (!train) {
    const std::string trained = std::exchange(folder, base + "test");
    absl::StatusOr<std::vector<std::string>> tested = lister.Classes(folder);
    if (absl::IsNotFound(tested.status())) {
      folder = base + "val";
      tested = lister.Classes(folder);
      if (absl::IsNotFound(tested.status())) {
        return DataMissing(absl::StatusCode::kNotFound,
                           absl::StrCat(base, "test: no such folder, nor ", folder));
      }
    }
    if (!tested.ok()) return tested.status();
    if (const std::string* const name = OneMissing(*tested, *classes)) {
      return OtherClasses(folder, trained, *name);
    }
    if (const std::string* const name = OneMissing(*classes, *tested)) {
      return OtherClasses(trained, folder, *name);
    }
  }
  ImageNames names(folder, *std::move(classes));
  for (size_t i = 0; i < names.classes().size(); ++i) {
    absl::StatusOr<std::vector<std::string>> images =
        lister.Images(absl::StrCat(folder, "/", names.classes()[i]));
    if (!images.ok()) return images.status();
    for (const std::string& image : *images) names.Append(static_cast<int32_t>(i), image);
  }
  return names;
}

}  // namespace capstan::data
