#include "exchange/shard/lane_marks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/check/mutant.h"

namespace capstan::exchange::shard {

int64_t NextStepOf(const training::SamplePlan& samples, int64_t total_steps, int32_t lane,
                   int64_t step) {
  // Epochs are equal: a lane without samples in a whole epoch never has any.
  const int64_t end = std::min(total_steps, step + samples.steps_per_epoch());
  for (; step < end; ++step) {
    if (samples.LaneSampleCount(step, lane) > 0) return step;
  }
  return total_steps;
}

void LaneMarks::Begin(int32_t chunks) {
  marks_.clear();
  std::vector<int64_t> first(samples_.lanes());
  for (int32_t lane = 0; lane < samples_.lanes(); ++lane) {
    first[lane] = NextStepOf(samples_, total_steps_, lane, 0);
  }
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    marks_.insert(marks_.end(), first.begin(), first.end());
  }
  updates_.assign(chunks, 0);
  lowest_ = first;
  at_lowest_.assign(samples_.lanes(), chunks);
}

absl::Status LaneMarks::Restore(int32_t chunks, int64_t version,
                                const std::vector<int64_t>& saved) {
  const int64_t each = SavedPerChunk(samples_);
  if (static_cast<int64_t>(saved.size()) != chunks * each) {
    return absl::DataLossError(
        absl::StrCat("marks: ", saved.size(), " numbers, want ", chunks * each));
  }
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    for (int32_t lane = 0; lane < samples_.lanes(); ++lane) {
      const int64_t mark = saved[chunk * each + lane];
      if (mark >= version && mark <= total_steps_ &&
          mark == NextStepOf(samples_, total_steps_, lane, mark)) {
        continue;
      }
      return absl::DataLossError(absl::StrCat("mark ", mark, " of lane ", lane, ": want a step of ",
                                              version, "..", total_steps_));
    }
    if (saved[chunk * each + samples_.lanes()] < 0) return absl::DataLossError("updates below 0");
  }
  marks_.clear();
  updates_.clear();
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const auto begin = saved.begin() + chunk * each;
    marks_.insert(marks_.end(), begin, begin + samples_.lanes());
    updates_.push_back(begin[samples_.lanes()]);
  }
  lowest_.assign(samples_.lanes(), 0);
  at_lowest_.assign(samples_.lanes(), 0);
  for (int32_t lane = 0; lane < samples_.lanes(); ++lane) Count(lane);
  return absl::OkStatus();
}

std::vector<int64_t> LaneMarks::Saved() const {
  std::vector<int64_t> saved;
  for (size_t chunk = 0; chunk < updates_.size(); ++chunk) {
    const auto begin = marks_.begin() + static_cast<int64_t>(chunk) * samples_.lanes();
    saved.insert(saved.end(), begin, begin + samples_.lanes());
    saved.push_back(updates_[chunk]);
  }
  return saved;
}

void LaneMarks::Raise(int32_t chunk, int32_t lane, bool applied) {
  int64_t& mark = marks_[chunk * samples_.lanes() + lane];
  const bool was_lowest = mark == lowest_[lane];
  mark = NextStepOf(samples_, total_steps_, lane, mark + 1);
  if (applied) ++updates_[chunk];
  if (was_lowest && --at_lowest_[lane] == 0) Count(lane);
}

void LaneMarks::Count(int32_t lane) {
  const auto chunks = static_cast<int32_t>(updates_.size());
  int64_t lowest = total_steps_;
  int32_t at = 0;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t here = mark(chunk, lane);
    if (here < lowest) at = 0;
    lowest = std::min(lowest, here);
    if (here == lowest) ++at;
    if (CAPSTAN_MUTANT("marks_of_the_first_chunk")) break;
  }
  lowest_[lane] = lowest;
  at_lowest_[lane] = at;
}

int64_t LaneMarks::Floor() const { return *std::min_element(lowest_.begin(), lowest_.end()); }

std::vector<int32_t> LaneMarks::MissingLanes(int64_t step) const {
  std::vector<int32_t> missing;
  for (int32_t lane = 0; lane < samples_.lanes(); ++lane) {
    if (lowest_[lane] <= step) missing.push_back(lane);
  }
  return missing;
}

int32_t LaneMarks::MissingChunks(int64_t step) const {
  int32_t missing = 0;
  for (size_t chunk = 0; chunk < updates_.size(); ++chunk) {
    const auto begin = marks_.begin() + static_cast<int64_t>(chunk) * samples_.lanes();
    if (*std::min_element(begin, begin + samples_.lanes()) <= step) ++missing;
  }
  return missing;
}

}  // namespace capstan::exchange::shard
