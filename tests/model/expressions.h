// Weights and sums of the model as expressions. The order of a summation, its lanes, and the step
// and weights of each gradient can be compared.
//
// Equal expressions have equal ids (hash-consing), so a state needs 16 bits for each.
#ifndef CAPSTAN_TESTS_MODEL_EXPRESSIONS_H_
#define CAPSTAN_TESTS_MODEL_EXPRESSIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace capstan::model {

using Id = uint16_t;  // 0: none

enum class Kind : uint8_t { kNone, kInitial, kGradient, kSum, kUpdate, kBare };

struct Expression {
  Kind kind = Kind::kNone;
  bool finite = true;
  Id left = 0;   // a gradient: the weights of shard 0; an update: the weights
  Id right = 0;  // a gradient: the weights of shard 1; an update: the sum
  uint8_t lane = 0;
  uint8_t part = 0;  // the shard whose chunk it is; 2: the seal of a lane
  uint8_t step = 0;
  uint8_t detail = 0;  // a gradient: who computed it, if that matters; an update: the rate
};

// Lane blocks of a tree over four lanes: 1 is the root, 2n and 2n+1 are below n, and lane l is 4+l.
inline constexpr int kRoot = 1;
inline constexpr int kBlocks = 8;
// The lanes below a block, as a mask, in a tree with `lanes` lanes. 0: the block does not exist.
int LanesBelow(int block, int lanes);
// The fewest blocks that have exactly the lanes of `mask`, as a mask of blocks.
int LargestBlocks(int mask, int lanes);

class Expressions {
 public:
  Expressions() : table_(1) {}

  Id Initial(int part) { return Make({Kind::kInitial, true, 0, 0, 0, Byte(part), 0, 0}); }
  Id Gradient(int lane, int part, int step, Id weights0, Id weights1, int source, bool finite) {
    return Make({Kind::kGradient, finite, weights0, weights1, Byte(lane), Byte(part), Byte(step),
                 Byte(source)});
  }
  Id Sum(Id left, Id right) {
    return Make({Kind::kSum, at(left).finite && at(right).finite, left, right, 0, 0, 0, 0});
  }
  Id Update(Id weights, Id sum, int rate) {
    return Make({Kind::kUpdate, at(sum).finite, weights, sum, 0, 0, 0, Byte(rate)});
  }

  // Weights that have lost the state of the optimizer. Their gradients are those of the weights, and
  // their updates are not.
  Id Bare(Id weights) {
    return at(weights).kind == Kind::kInitial
               ? weights
               : Make({Kind::kBare, at(weights).finite, weights, 0, 0, 0, 0, 0});
  }
  Id WeightsOf(Id id) const { return at(id).kind == Kind::kBare ? at(id).left : id; }

  const Expression& at(Id id) const { return table_[id]; }
  // The gradients in a sum, from left to right.
  void Leaves(Id sum, std::vector<Id>* out) const;
  // The sum over the tree of `lanes` lanes below `block`. `leaves` is by lane.
  Id TreeSum(int block, int lanes, const std::array<Id, 4>& leaves);
  size_t size() const { return table_.size() - 1; }

 private:
  static uint8_t Byte(int value) { return static_cast<uint8_t>(value); }
  Id Make(const Expression& expression);

  std::vector<Expression> table_;
  std::map<std::array<uint16_t, 7>, Id> ids_;
};

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_EXPRESSIONS_H_
