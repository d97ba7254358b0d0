// Softmax and its gradient for one instruction set. math.cc includes this file once per set, inside
// its namespace, after doubles-inl.h.
//
// Each of 16 samples has the sums of the scalar form in the same order, so the bits are the same.

void SoftmaxSums(int64_t classes, const float* logits, SoftmaxRow& row) {
  for (int64_t l = 0; l < kSideBySide; l += kDoubles) {
    V64 largest = hn::PromoteTo(d64, hn::LoadU(df, logits + l));
    V64 best = hn::Zero(d64);
    auto number = hn::Eq(largest, largest);
    for (int64_t k = 1; k < classes; ++k) {
      const V64 x = hn::PromoteTo(d64, hn::LoadU(df, logits + k * kSideBySide + l));
      const auto more = hn::Gt(x, largest);
      largest = hn::IfThenElse(more, x, largest);
      best = hn::IfThenElse(more, hn::Set(d64, static_cast<double>(k)), best);
      number = hn::And(number, hn::Eq(x, x));
    }
    V64 sum = hn::Zero(d64);
    for (int64_t k = 0; k < classes; ++k) {
      const V64 x = hn::PromoteTo(d64, hn::LoadU(df, logits + k * kSideBySide + l));
      sum = hn::Add(sum, Exp(hn::Sub(x, largest)));
    }
    hn::StoreU(largest, d64, row.largest + l);
    hn::StoreU(hn::IfThenElse(number, best, hn::Set(d64, -1.0)), d64, row.best + l);
    hn::StoreU(sum, d64, row.sum + l);
  }
}

void SoftmaxGradient(const SoftmaxGradientCall& call) {
  const V64 others = hn::Set(d64, call.others), own = hn::Set(d64, call.own);
  const V64 scale = hn::Set(d64, call.scale), zero = hn::Zero(d64);
  for (int64_t l = 0; l < kSideBySide; l += kDoubles) {
    const V64 label = hn::LoadU(d64, call.labels + l);
    const V64 log_sum = hn::LoadU(d64, call.log_sums + l);
    for (int64_t k = 0; k < call.classes; ++k) {
      const int64_t at = k * kSideBySide + l;
      const V64 x = hn::PromoteTo(d64, hn::LoadU(df, call.logits + at));
      const auto is_label = hn::Eq(label, hn::Set(d64, static_cast<double>(k)));
      const V64 target = hn::Add(others, hn::IfThenElse(is_label, own, zero));
      const V64 difference = hn::Sub(Exp(hn::Sub(x, log_sum)), target);
      hn::StoreU(ToFloats(hn::Mul(difference, scale)), df, call.gradient + at);
    }
  }
}
