#include "training/ops/op_cases.h"
#include "training/ops/slice/slice.h"

namespace capstan::training {

std::vector<OpCase> SliceCases() {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();
  const std::vector<ValueType> image = Floats({{3, 5, 7}});
  return {
      {"one", SliceNode{{0}, {1}, {}, {}}, Floats({{1}})},
      {"features", SliceNode{{2}, {5}, {1}, {1}}, Floats({{7}})},
      {"first_axes", SliceNode{{1, 0}, {3, 2}, {}, {}}, image},
      {"to_the_end", SliceNode{{1}, {kLargest}, {-1}, {}}, image},
      {"from_the_end", SliceNode{{-3}, {-1}, {3}, {}}, image},
      {"steps", SliceNode{{1, 0}, {7, 5}, {3, 2}, {3, 2}}, image},
      {"backwards", SliceNode{{-1, 3}, {kSmallest, 0}, {3, 2}, {-1, -2}}, image},
      {"long_steps", SliceNode{{1, 4}, {5, kSmallest}, {2, 3}, {kLargest, kSmallest}}, image},
      {"outside", SliceNode{{-100, 100}, {100, -100}, {1, 3}, {1, -3}}, image},
      {"whole", SliceNode{{}, {}, {}, {}}, image},
      Refused("no_starts", With({SliceNode::kName, {}}, "ends", std::vector<int64_t>{1}), image,
              "attribute starts: is required"),
      Refused("no_ends", With({SliceNode::kName, {}}, "starts", std::vector<int64_t>{1}), image,
              "attribute ends: is required"),
      Refused("fewer_ends", SliceNode{{0, 0}, {1}, {}, {}}, image,
              "attribute ends: 1 numbers, want 2 as starts"),
      Refused("fewer_axes", SliceNode{{0, 0}, {1, 1}, {1}, {}}, image, "attribute axes: 1 numbers"),
      Refused("more_steps", SliceNode{{0}, {1}, {1}, {1, 1}}, image, "attribute steps: 2 numbers"),
      Refused("step_zero", SliceNode{{0}, {1}, {1}, {0}}, image,
              "attribute steps: 0, want any other"),
      Refused("empty", SliceNode{{2}, {2}, {1}, {1}}, image,
              "nothing from 2 before 2 in steps of 1 over axis 1 of 3, want at least one index"),
      Refused("behind_the_end", SliceNode{{5}, {9}, {2}, {}}, image, "nothing from 5 before 9"),
      Refused("against_the_step", SliceNode{{0}, {3}, {1}, {-1}}, image, "in steps of -1"),
      Refused("batch", SliceNode{{0}, {1}, {0}, {}}, image, "attribute axes: 0, want 1 to 3"),
      Refused("beyond", SliceNode{{0}, {1}, {4}, {}}, image, "attribute axes: 4, want 1 to 3"),
      Refused("twice", SliceNode{{0, 0}, {1, 1}, {2, -2}, {}}, image, "has axis 2 twice"),
      Refused("integers", SliceNode{{0}, {1}, {}, {}}, {{{4}, DType::kInt32}},
              "int32, want float32"),
  };
}

}  // namespace capstan::training
