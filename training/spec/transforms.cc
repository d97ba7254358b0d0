#include <string>

#include "training/spec/rules.h"

namespace capstan::training::spec {
namespace {

using job::v1::Transform;

constexpr int kMaxTransforms = 16;
constexpr int64_t kMaxSide = 4096;

std::string TransformPath(int index) { return absl::StrCat("data.transforms[", index, "]"); }

void CheckNormalize(const job::v1::Normalize& normalize, const std::string& path, Rules& rules) {
  rules.Required(path + ".mean", normalize.mean_size() > 0);
  rules.Required(path + ".std", normalize.std_size() > 0);
  for (const double mean : normalize.mean()) {
    if (!std::isfinite(mean)) {
      rules.Wrong(path + ".mean", absl::StrCat("takes finite numbers, found ", mean));
    }
  }
  // The limit keeps the number above 0 as a float.
  for (const double std : normalize.std()) {
    if (!(std >= 1e-30 && std <= 1e30)) {
      rules.Wrong(path + ".std", absl::StrCat("takes numbers above 0, found ", std));
    }
  }
  if (normalize.mean_size() > 0 && normalize.std_size() > 0 &&
      normalize.mean_size() != normalize.std_size()) {
    rules.Fail(path + ".std", absl::StrCat("has ", normalize.std_size(), " entries, 'mean' has ",
                                           normalize.mean_size()));
  }
}

}  // namespace

void CheckTransforms(const job::v1::Data& data, Rules& rules) {
  if (data.transforms_size() > kMaxTransforms) {
    rules.Wrong("data.transforms", absl::StrCat("has ", data.transforms_size(), " entries, ",
                                                kMaxTransforms, " is the limit"));
  }
  for (int i = 0; i < data.transforms_size(); ++i) {
    const Transform& transform = data.transforms(i);
    const auto size = [&](const char* name, bool given, int64_t value) {
      const std::string path = absl::StrCat(TransformPath(i), ".", name, ".size");
      rules.Required(path, given);
      if (given) rules.Range<int64_t>(path, value, 1, kMaxSide);
    };
    switch (transform.kind_case()) {
      case Transform::kRandomCrop: {
        const auto& crop = transform.random_crop();
        if (crop.has_size()) size("random_crop", true, crop.size());
        if (crop.has_padding()) {
          rules.Range<int64_t>(TransformPath(i) + ".random_crop.padding", crop.padding(), 0,
                               kMaxSide);
        }
        break;
      }
      case Transform::kRandomFlip:
        if (transform.random_flip().has_axis()) {
          rules.OneOf(TransformPath(i) + ".random_flip.axis", transform.random_flip().axis(),
                      {"horizontal", "vertical"});
        }
        break;
      case Transform::kNormalize:
        CheckNormalize(transform.normalize(), TransformPath(i) + ".normalize", rules);
        break;
      case Transform::kResize:
        size("resize", transform.resize().has_size(), transform.resize().size());
        break;
      case Transform::kCutout:
        size("cutout", transform.cutout().has_size(), transform.cutout().size());
        break;
      case Transform::KIND_NOT_SET:
        rules.Wrong(TransformPath(i),
                    "must name one of random_crop, random_flip, normalize, resize, cutout");
    }
  }
}

void FillTransformDefaults(job::v1::Data& data) {
  for (Transform& transform : *data.mutable_transforms()) {
    if (transform.has_random_crop() && !transform.random_crop().has_padding()) {
      transform.mutable_random_crop()->set_padding(0);
    }
    if (transform.has_random_flip() && !transform.random_flip().has_axis()) {
      transform.mutable_random_flip()->set_axis("horizontal");
    }
  }
}

absl::StatusOr<std::vector<int64_t>> InputShape(const job::v1::Data& data,
                                                const common::v1::DatasetInfo& dataset) {
  const int64_t channels = dataset.channels();
  int64_t height = dataset.height();
  int64_t width = dataset.width();
  for (int i = 0; i < data.transforms_size(); ++i) {
    const Transform& transform = data.transforms(i);
    if (HasVectors(data, dataset) && !transform.has_normalize()) {
      const auto* kind = transform.GetReflection()->GetOneofFieldDescriptor(
          transform, transform.GetDescriptor()->FindOneofByName("kind"));
      return absl::InvalidArgumentError(absl::StrCat(
          "'", TransformPath(i), kind == nullptr ? "" : absl::StrCat(".", kind->name()),
          "' is for images, a sample of this data set is a vector of ", dataset.width(),
          " features: only normalize fits"));
    }
    if (transform.has_resize()) height = width = transform.resize().size();
    if (transform.has_random_crop()) {
      const auto& crop = transform.random_crop();
      const int64_t rows = crop.has_size() ? crop.size() : height;
      const int64_t columns = crop.has_size() ? crop.size() : width;
      if (rows > height + 2 * crop.padding() || columns > width + 2 * crop.padding()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", TransformPath(i), ".random_crop.size' is ", crop.size(), ", the image has ",
            height, " x ", width, " pixels and padding ", crop.padding()));
      }
      height = rows;
      width = columns;
    }
    if (transform.has_normalize()) {
      const int64_t means = transform.normalize().mean_size();
      if (means != 1 && means != channels) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", TransformPath(i), ".normalize.mean' has ", means,
                         " entries, want 1 or ", channels, " (channels of the image)"));
      }
    }
  }
  return std::vector<int64_t>{channels, height, width};
}

}  // namespace capstan::training::spec
