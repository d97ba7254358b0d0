#include "training/ops/types.h"

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::training {

std::string ShapeToString(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> ElementCount(const Shape& shape, absl::string_view what) {
  absl::int128 count = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": shape ", ShapeToString(shape), ", want dimensions of at least 1"));
    }
    count *= dimension;
    if (count > kMaxTensorElements) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": shape ", ShapeToString(shape),
                                                     ", want at most ", kMaxTensorElements,
                                                     " elements"));
    }
  }
  return static_cast<int64_t>(count);
}

int64_t Elements(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  return count;
}

}  // namespace capstan::training
