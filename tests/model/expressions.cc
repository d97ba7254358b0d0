#include "tests/model/expressions.h"

#include "services/check/check.h"

namespace capstan::model {

int LanesBelow(int block, int lanes) {
  int first = block, last = block;
  while (first < 4) {
    first = 2 * first;
    last = 2 * last + 1;
  }
  int mask = 0;
  for (int leaf = first; leaf <= last; ++leaf) {
    if (leaf - 4 < lanes) mask |= 1 << (leaf - 4);
  }
  return mask;
}

int LargestBlocks(int mask, int lanes) {
  int blocks = 0, left = mask;
  for (int block = 1; block < kBlocks; ++block) {  // larger blocks come first
    const int below = LanesBelow(block, lanes);
    if (below == 0 || (below & ~left) != 0) continue;
    blocks |= 1 << block;
    left &= ~below;
  }
  return blocks;
}

Id Expressions::Make(const Expression& e) {
  const std::array<uint16_t, 7> key = {
      static_cast<uint16_t>(e.kind), e.left, e.right, e.lane, e.part, e.step, e.detail};
  const auto [known, fresh] = ids_.emplace(key, static_cast<Id>(table_.size()));
  if (fresh) {
    CAPSTAN_CHECK(table_.size() < (1 << 14));  // an id in a message has 14 bits
    table_.push_back(e);
  }
  return known->second;
}

void Expressions::Leaves(Id sum, std::vector<Id>* out) const {
  const Expression& e = table_[sum];
  if (e.kind != Kind::kSum) {
    out->push_back(sum);
    return;
  }
  Leaves(e.left, out);
  Leaves(e.right, out);
}

Id Expressions::TreeSum(int block, int lanes, const std::array<Id, 4>& leaves) {
  if (block >= 4) return leaves[block - 4];
  const Id left = TreeSum(2 * block, lanes, leaves);
  if (LanesBelow(2 * block + 1, lanes) == 0) return left;
  return Sum(left, TreeSum(2 * block + 1, lanes, leaves));
}

}  // namespace capstan::model
