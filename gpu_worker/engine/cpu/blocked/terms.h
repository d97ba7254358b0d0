// Phases that visit the places of a block row by row (walk.h) and add terms (strided.h).
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_TERMS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_TERMS_H_

#include <algorithm>
#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/block_sums.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/strided.h"
#include "gpu_worker/engine/cpu/blocked/walk.h"

namespace capstan::engine {

// Sets `count` vectors to 0, from sample `first` of each on.
inline void ZeroSamples(float* at, int64_t count, int64_t step, int64_t first) {
  for (int64_t i = 0; i < count; ++i, at += step) std::fill(at + first, at + kSideBySide, 0.0f);
}

// The pieces of a phase: parts of blocks.
inline std::function<int64_t(const BatchRun&)> PartsOfBlocks(int64_t parts) {
  return [parts](const BatchRun& run) { return run.blocks * parts; };
}

// What a phase of terms writes: tensor `tensor` of the walk, with `elements` in a block.
struct TermTarget {
  size_t tensor = 0;
  float* data = nullptr;
  int64_t elements = 0;
  bool add = false;              // to the old values
  bool repeats = false;          // several places of the walk are one place of the tensor
  bool zero_if_missing = false;  // terms of missing samples may be NaN: write zeros
};

// make_term(run, block, places) gives the term of a row: without its target and its count.
template <typename MakeTerm>
Phase TermPhase(const RowWalk& walk, const BlockedMath& math, const TermTarget& target,
                MakeTerm make_term) {
  const int64_t parts = walk.Parts(target.tensor);
  return {0, PartsOfBlocks(parts),
          [=, loops = &StridedLoopsOf(math)](const BatchRun& run, int64_t piece, char*) {
            const int64_t block = piece / parts;
            const RowWalk part = walk.Part(target.tensor, piece % parts, parts);
            const int64_t step = part.step(target.tensor);
            float* const to = target.data + block * target.elements * kSideBySide;
            if (target.repeats && !target.add) {
              const RowWalk once = part.Once(target.tensor);
              once.ForRows([&](const RowWalk::Places& at) {
                ZeroSamples(to + at[target.tensor], once.size(), step, 0);
              });
            }
            part.ForRows([&](const RowWalk::Places& at) {
              TermCall call = make_term(run, block, at);
              call.count = part.size();
              call.to = to + at[target.tensor];
              call.to_step = step;
              call.add = target.add || target.repeats;
              loops->term(call);
            });
            const int64_t there = target.zero_if_missing ? run.InBlock(block) : kSideBySide;
            if (there == kSideBySide) return;
            const RowWalk once = part.Once(target.tensor);
            once.ForRows([&](const RowWalk::Places& at) {
              ZeroSamples(to + at[target.tensor], once.size(), step, there);
            });
          }};
}

// Sums terms over the samples of each block, for the gradient by a parameter that is tensor `tensor`
// of the walk. The terms of a row are summed over its samples and then added to the sums.
template <typename MakeTerm>
Phase TermSumsPhase(const RowWalk& walk, const BlockedMath& math, size_t tensor,
                    const BlockSums& block_sums, MakeTerm make_term) {
  constexpr int64_t kAtOnce = 256;
  const int64_t parts = walk.Parts(tensor);
  return {kAtOnce * (kSideBySide + 1) * 4, PartsOfBlocks(parts),
          [=, math = &math](const BatchRun& run, int64_t piece, char* scratch) {
            const StridedLoops& loops = StridedLoopsOf(*math);
            const int64_t block = piece / parts, there = run.InBlock(block);
            const RowWalk part = walk.Part(tensor, piece % parts, parts);
            const int64_t step = part.step(tensor);
            auto* const terms = reinterpret_cast<float*>(scratch);
            float* const totals = terms + kAtOnce * kSideBySide;
            float* const to = block_sums.of(block);
            const RowWalk once = part.Once(tensor);
            once.ForRows([&](const RowWalk::Places& at) {
              for (int64_t i = 0; i < once.size(); ++i) to[at[tensor] + i * step] = 0;
            });
            part.ForRows([&](const RowWalk::Places& at) {
              TermCall call = make_term(run, block, at);
              call.to = terms;
              call.to_step = step == 0 ? 0 : kSideBySide;
              for (int64_t first = 0; first < part.size(); first += kAtOnce) {
                call.count = std::min(kAtOnce, part.size() - first);
                // Terms that are side by side already are not copied.
                const bool contiguous = call.term == Term::kSame && !call.dy.number && step != 0 &&
                                        call.dy.step == kSideBySide;
                const float* const from = contiguous ? call.dy.at : terms;
                if (!contiguous) loops.term(call);
                for (StridedOperand* const of : {&call.dy, &call.a, &call.b}) {
                  of->at += call.count * of->step;
                }
                const int64_t sums = step == 0 ? 1 : call.count;
                // Gradients of missing samples are zeros, but their quotients need not be.
                if (!contiguous && there < kSideBySide) {
                  ZeroSamples(terms, sums, kSideBySide, there);
                }
                math->sum_samples(sums, from, totals);
                float* const at_row = to + at[tensor] + first * step;
                for (int64_t i = 0; i < sums; ++i) at_row[i * step] += totals[i];
              }
            });
          }};
}

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_TERMS_H_
