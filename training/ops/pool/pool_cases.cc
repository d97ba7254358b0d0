#include "training/ops/op_cases.h"
#include "training/ops/pool/pool.h"

namespace capstan::training {
namespace {

using PoolNumbers = std::vector<int64_t>;

// Cases of the window, for both poolings.
template <typename Pool>
std::vector<OpCase> WindowCases() {
  const auto pool = [](int64_t height, int64_t width, int64_t stride, int64_t pad) {
    Pool op;
    op.window.kernel_shape = {height, width};
    op.window.strides = {stride, stride};
    op.window.pads = {pad, pad, pad, pad};
    return op;
  };
  const std::string same_lower = "SAME_LOWER";
  const std::vector<ValueType> image = Floats({{2, 7, 5}});
  return {
      {"one", pool(1, 1, 1, 0), Floats({{1, 1, 1}})},
      {"typical", pool(2, 2, 2, 0), Floats({{3, 8, 8}})},
      {"leaves_a_rest", pool(2, 2, 2, 0), image},
      {"leaves_gaps", pool(1, 2, 3, 0), image},
      {"overlaps", pool(3, 3, 2, 1), image},
      {"uneven", With(pool(3, 2, 1, 0), "pads", PoolNumbers{2, 0, 1, 1}), image},
      {"dilated", With(pool(3, 2, 1, 1), "dilations", PoolNumbers{2, 3}), image},
      {"same_upper", With(pool(2, 2, 2, 0), "auto_pad", std::string("SAME_UPPER")), image},
      {"same_lower", With(pool(4, 2, 1, 0), "auto_pad", same_lower), image},
      {"valid", With(pool(3, 2, 2, 0), "auto_pad", std::string("VALID")), image},
      Refused("features", pool(2, 2, 2, 0), Floats({{12}}), "input [12], want [C, H, W]"),
      Refused("bytes", pool(2, 2, 2, 0), {{{1, 4, 4}, DType::kUint8}}, "uint8, want float32"),
      Refused("two_inputs", pool(2, 2, 2, 0), Floats({{1, 4, 4}, {1, 4, 4}}), "2 inputs, want 1"),
      Refused("no_kernel", {Pool::kName, {}}, image, "attribute kernel_shape: is required"),
      Refused("kernel_negative", pool(2, -2, 2, 0), image, "kernel of the width -2"),
      Refused("kernel_of_three", With(pool(1, 1, 1, 0), "kernel_shape", PoolNumbers{2, 2, 2}),
              image, "attribute kernel_shape: 3 numbers, want 2"),
      Refused("kernel_too_high", pool(8, 1, 1, 0), image, "height 7 with padding 0 + 0"),
      Refused("stride_negative", pool(2, 2, -1, 0), image, "stride of the height -1"),
      Refused("dilation_zero", With(pool(2, 2, 1, 0), "dilations", PoolNumbers{1, 0}), image,
              "dilation of the width 0, want at least 1"),
      Refused("padding_alone", pool(2, 2, 2, 2), image, "padding 2, want less than the kernel 2"),
      // The two elements of the window at 0 lie at -1 and 3.
      Refused("steps_over_the_input",
              With(With(pool(1, 2, 1, 0), "pads", PoolNumbers{0, 1, 0, 1}), "dilations",
                   PoolNumbers{1, 4}),
              Floats({{1, 1, 3}}), "dilation 4, want at most the width 3"),
      Refused("absurd", pool(kAbsurd, kAbsurd, kAbsurd, kAbsurd - 1), image, "is too large"),
      Refused("large_kernel", pool(1 << 21, 1 << 21, 1 << 21, (1 << 21) - 1), image,
              "kernel: shape"),
      Refused("auto_pad_unknown", With(pool(2, 2, 2, 0), "auto_pad", std::string("")), image,
              "attribute auto_pad: '', want NOTSET"),
  };
}

}  // namespace

std::vector<OpCase> MaxPoolCases() { return WindowCases<MaxPool>(); }

std::vector<OpCase> AveragePoolCases() {
  std::vector<OpCase> cases = WindowCases<AveragePool>();
  AveragePool pool;
  pool.window.kernel_shape = {3, 2};
  pool.window.pads = {2, 1, 1, 0};
  pool.window.strides = {2, 1};
  pool.count_include_pad = true;
  const std::vector<ValueType> image = Floats({{2, 7, 5}});
  cases.push_back({"counts_padding", pool, image});
  cases.push_back(Refused("count_include_pad_no_flag", With(pool, "count_include_pad", int64_t{7}),
                          image, "attribute count_include_pad: 7, want 0 or 1"));
  return cases;
}

}  // namespace capstan::training
