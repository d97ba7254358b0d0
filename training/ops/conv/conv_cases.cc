#include "training/ops/conv/conv.h"
#include "training/ops/op_cases.h"

namespace capstan::training {
namespace {

using ConvNumbers = std::vector<int64_t>;

constexpr int64_t kHugePad = int64_t{1} << 21;

Conv ConvOf(int64_t out_channels, int64_t height, int64_t width) {
  Conv conv;
  conv.out_channels = out_channels;
  conv.window.kernel_shape = {height, width};
  return conv;
}

Conv Uneven() {
  Conv conv = ConvOf(4, 3, 3);
  conv.window.strides = {2, 3};
  conv.window.pads = {1, 0, 2, 1};
  conv.window.dilations = {2, 1};
  return conv;
}

Conv Grouped(int64_t out_channels, int64_t group) {
  Conv conv = ConvOf(out_channels, 3, 3);
  conv.window.pads = {1, 1, 1, 1};
  conv.group = group;
  return conv;
}

Conv WithoutBias(Conv conv) {
  conv.bias = false;
  return conv;
}

}  // namespace

std::vector<OpCase> ConvCases() {
  const Conv conv = ConvOf(2, 2, 3);
  const std::vector<ValueType> image = Floats({{3, 7, 5}});
  const std::string same = "SAME_UPPER";
  return {
      {"one", ConvOf(1, 1, 1), Floats({{1, 1, 1}})},
      {"primes", WithoutBias(ConvOf(5, 3, 2)), Floats({{3, 7, 11}})},
      {"typical", Grouped(8, 1), Floats({{3, 8, 8}})},
      {"wide", Grouped(21, 1), Floats({{17, 6, 9}})},
      {"uneven", Uneven(), Floats({{2, 11, 13}})},
      {"grouped", Grouped(6, 2), Floats({{4, 5, 5}})},
      {"depthwise", Grouped(3, 3), Floats({{3, 5, 5}})},
      {"same_upper", With(With(conv, "auto_pad", same), "strides", ConvNumbers{2, 2}), image},
      {"same_lower", With(conv, "auto_pad", std::string("SAME_LOWER")), image},
      {"valid", With(conv, "auto_pad", std::string("VALID")), image},
      {"whole_image", ConvOf(4, 7, 5), image},
      Refused("features", conv, Floats({{12}}), "input [12], want [C, H, W]"),
      Refused("bytes", conv, {{{3, 7, 5}, DType::kUint8}}, "uint8, want float32"),
      Refused("no_kernel", {Conv::kName, {{"out_channels", int64_t{1}}}}, image,
              "attribute kernel_shape: is required"),
      Refused("no_channels", ConvOf(0, 1, 1), image, "out_channels 0, want at least 1"),
      Refused("absurd_channels", ConvOf(kAbsurd, 1, 1), image, "weight: shape"),
      Refused("kernel_zero", ConvOf(1, 0, 1), image, "kernel of the height 0, want at least 1"),
      Refused("kernel_too_wide", ConvOf(1, 1, 6), image, "width 5 with padding 0 + 0, want"),
      Refused("kernel_absurd", ConvOf(1, kAbsurd, kAbsurd), image, "height 7"),
      Refused("kernel_of_one_number", With(conv, "kernel_shape", ConvNumbers{3}), image,
              "attribute kernel_shape: 1 numbers, want 2"),
      Refused("strides_of_three", With(conv, "strides", ConvNumbers{1, 1, 1}), image,
              "attribute strides: 3 numbers, want 2"),
      Refused("pads_of_two", With(conv, "pads", ConvNumbers{1, 1}), image,
              "attribute pads: 2 numbers, want 4"),
      Refused("no_dilations", With(conv, "dilations", ConvNumbers{}), image,
              "attribute dilations: 0 numbers, want 2"),
      Refused("stride_zero", With(conv, "strides", ConvNumbers{1, 0}), image,
              "stride of the width 0"),
      Refused("pad_negative", With(conv, "pads", ConvNumbers{0, 0, -1, 0}), image,
              "padding of the height -1, want at least 0"),
      // Positions inside such a padding would overflow, even if the stride leaves few outputs.
      Refused("pads_absurd",
              With(With(conv, "pads", ConvNumbers{kAbsurd, kAbsurd, kAbsurd, kAbsurd}), "strides",
                   ConvNumbers{kAbsurd, kAbsurd}),
              image, "padding of the height 4611686018427387904 is too large"),
      // There are only four outputs, but the image would be copied with its padding.
      Refused("pads_huge",
              With(With(conv, "pads", ConvNumbers{kHugePad, kHugePad, kHugePad, kHugePad}),
                   "strides", ConvNumbers{kHugePad, kHugePad}),
              image, "has too many elements, want at most 1099511627776"),
      Refused("dilation_absurd", With(conv, "dilations", ConvNumbers{kAbsurd, 1}), image,
              "at dilation 4611686018427387904"),
      Refused("group_zero", Grouped(6, 0), image, "group 0, want at least 1"),
      Refused("group_no_divisor", Grouped(6, 2), image, "group 2, want a divisor of 3 and 6"),
      Refused("bias_no_flag", With(conv, "bias", int64_t{-1}), image,
              "attribute bias: -1, want 0 or 1"),
      Refused("auto_pad_unknown", With(conv, "auto_pad", std::string("SAME")), image,
              "attribute auto_pad: 'SAME', want NOTSET, VALID"),
      Refused("both_pads", With(With(conv, "auto_pad", same), "pads", ConvNumbers{1, 1, 1, 1}),
              image, "attribute pads: set beside auto_pad"),
      Refused("same_absurd",
              With(With(conv, "auto_pad", same), "dilations", ConvNumbers{kAbsurd, 1}), image,
              "auto_pad: padding of the height is too large"),
      Refused("output_too_large", ConvOf(2, 1, 1), Floats({{1, 1 << 20, 1 << 20}}),
              "output: shape"),
  };
}

}  // namespace capstan::training
