#include "training/ops/window.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

constexpr const char* kAxes[] = {"height", "width"};

absl::Status CheckLength(const Attributes& attributes, const std::string& name, size_t want) {
  const size_t got = attributes.Ints(name).size();
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attribute ", name, ": ", got, " numbers, want ", want));
}

// The total padding of both sides that gives ceil(size / stride) outputs.
absl::StatusOr<int64_t> SamePadding(const Window& window, int axis, int64_t size) {
  const absl::int128 stride = window.strides[axis];
  const absl::int128 reach =
      absl::int128(window.dilations[axis]) * (window.kernel_shape[axis] - 1) + 1;
  const absl::int128 outputs = (absl::int128(size) + stride - 1) / stride;
  const absl::int128 sum = std::max<absl::int128>((outputs - 1) * stride + reach - size, 0);
  if (sum > kMaxTensorElements) {
    return absl::InvalidArgumentError(absl::StrCat("auto_pad: padding of the ", kAxes[axis],
                                                   " is too large, want at most ",
                                                   kMaxTensorElements));
  }
  return static_cast<int64_t>(sum);
}

absl::StatusOr<int64_t> WindowOutput(const Window& window, int axis, int64_t size) {
  const int64_t kernel = window.kernel_shape[axis];
  const int64_t dilation = window.dilations[axis];
  const int64_t before = window.pads[axis];
  const int64_t after = window.pads[axis + 2];
  const absl::int128 reach = absl::int128(dilation) * (kernel - 1) + 1;
  const absl::int128 padded = absl::int128(size) + before + after;
  if (padded < reach) {
    return absl::InvalidArgumentError(absl::StrCat(kAxes[axis], " ", size, " with padding ", before,
                                                   " + ", after, ", want at least the kernel ",
                                                   kernel, " at dilation ", dilation));
  }
  const absl::int128 output = (padded - reach) / window.strides[axis] + 1;
  if (output > kMaxTensorElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("output ", kAxes[axis], " is too large, want at most ", kMaxTensorElements));
  }
  return static_cast<int64_t>(output);
}

// Kernels copy the image with its padding, however large the stride is.
absl::Status CheckPadded(const Shape& x, const Window& window) {
  absl::int128 elements = x[0];
  for (int axis = 0; axis < 2; ++axis) {
    elements *= absl::int128(x[axis + 1]) + window.pads[axis] + window.pads[axis + 2];
    if (elements > kMaxTensorElements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input ", ShapeToString(x), " with padding ", absl::StrJoin(window.pads, " "),
          " has too many elements, want at most ", kMaxTensorElements));
    }
  }
  return absl::OkStatus();
}

// With larger pads, positions inside a window could overflow.
absl::Status CheckPads(const Window& window) {
  for (int side = 0; side < 4; ++side) {
    if (window.pads[side] > kMaxTensorElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("padding of the ", kAxes[side % 2], " ", window.pads[side],
                       " is too large, want at most ", kMaxTensorElements));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const Window& window) {
  for (int axis = 0; axis < 2; ++axis) {
    for (const auto& [what, got, want] :
         {std::make_tuple("kernel", window.kernel_shape[axis], int64_t{1}),
          std::make_tuple("stride", window.strides[axis], int64_t{1}),
          std::make_tuple("dilation", window.dilations[axis], int64_t{1}),
          std::make_tuple("padding", window.pads[axis], int64_t{0}),
          std::make_tuple("padding", window.pads[axis + 2], int64_t{0})}) {
      const absl::Status status =
          CheckAtLeast(absl::StrCat(what, " of the ", kAxes[axis]), got, want);
      if (!status.ok()) return status;
    }
  }
  return CheckPads(window);
}

}  // namespace

std::vector<AttributeDef> WindowSchema() {
  using Ints = std::vector<int64_t>;
  return {{"kernel_shape", Ints(), /*required=*/true},
          {"strides", Ints{1, 1}},
          {"pads", Ints{0, 0, 0, 0}},
          {"dilations", Ints{1, 1}},
          {"auto_pad", std::string("NOTSET")}};
}

void SetWindow(const Window& window, Attributes& attributes) {
  const auto set = [&attributes](const char* name, const auto& values) {
    attributes.Set(name, std::vector<int64_t>(values.begin(), values.end()));
  };
  set("kernel_shape", window.kernel_shape);
  set("strides", window.strides);
  set("pads", window.pads);
  set("dilations", window.dilations);
}

Window ReadWindow(const Attributes& attributes) {
  Window window;
  const auto read = [&attributes](const char* name, auto& values) {
    const std::vector<int64_t>& from = attributes.Ints(name);
    std::copy_n(from.begin(), std::min(from.size(), values.size()), values.begin());
  };
  read("kernel_shape", window.kernel_shape);
  read("strides", window.strides);
  read("pads", window.pads);
  read("dilations", window.dilations);
  return window;
}

absl::StatusOr<std::array<int64_t, 2>> InferWindow(const Shape& x, Attributes& attributes) {
  for (const auto& [name, length] :
       {std::make_pair("kernel_shape", size_t{2}), std::make_pair("strides", size_t{2}),
        std::make_pair("pads", size_t{4}), std::make_pair("dilations", size_t{2})}) {
    const absl::Status status = CheckLength(attributes, name, length);
    if (!status.ok()) return status;
  }
  Window window = ReadWindow(attributes);
  const absl::Status checked = CheckValues(window);
  if (!checked.ok()) return checked;

  const std::string auto_pad = attributes.Text("auto_pad");
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  if (!same && auto_pad != "VALID" && auto_pad != "NOTSET") {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute auto_pad: '", auto_pad, "', want NOTSET, VALID, SAME_UPPER or SAME_LOWER"));
  }
  if (auto_pad != "NOTSET") {
    if (window.pads != std::array<int64_t, 4>{}) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute pads: set beside auto_pad '", auto_pad, "', want one of them"));
    }
    for (int axis = 0; same && axis < 2; ++axis) {
      const absl::StatusOr<int64_t> sum = SamePadding(window, axis, x[axis + 1]);
      if (!sum.ok()) return sum.status();
      const int64_t small = *sum / 2;
      window.pads[axis] = auto_pad == "SAME_UPPER" ? small : *sum - small;
      window.pads[axis + 2] = *sum - window.pads[axis];
    }
    SetWindow(window, attributes);
    attributes.Set("auto_pad", std::string("NOTSET"));
  }

  std::array<int64_t, 2> output = {};
  for (int axis = 0; axis < 2; ++axis) {
    const absl::StatusOr<int64_t> size = WindowOutput(window, axis, x[axis + 1]);
    if (!size.ok()) return size.status();
    output[axis] = *size;
  }
  const absl::StatusOr<int64_t> taps =
      ElementCount({window.kernel_shape[0], window.kernel_shape[1]}, "kernel");
  if (!taps.ok()) return taps.status();
  const absl::Status padded = CheckPadded(x, window);
  if (!padded.ok()) return padded;
  return output;
}

}  // namespace capstan::training
