// The search itself, for any machine: breadth first, so that the shortest way to a broken invariant
// is found first.
//
// A machine has Initial(), Finished(state), Successors(state, describe, visit) and a type Step with
// `next`, `what`, `fault` and `violation`. A state is a `core` of plain bytes without padding and a
// sorted `network` of messages.
#ifndef CAPSTAN_TESTS_MODEL_SEARCHER_H_
#define CAPSTAN_TESTS_MODEL_SEARCHER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace capstan::model {

struct Verdict {
  // Empty: no invariant was broken. Otherwise it begins with the invariant's name, which the header
  // of each search explains.
  std::string violation;
  std::vector<std::string> trace;  // the events that lead there; faults begin with *
  bool complete = false;           // every reachable state was seen
  size_t states = 0;               // each is stored as a 64-bit hash
  size_t transitions = 0;
  size_t depth = 0;
  size_t done_states = 0;
};

inline uint64_t MixWords(const void* data, size_t words, uint64_t hash) {
  const char* bytes = static_cast<const char*>(data);
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

template <typename AnyState>
uint64_t HashOf(const AnyState& state) {
  static_assert(sizeof(state.core) % 8 == 0);
  uint64_t hash = MixWords(&state.core, sizeof(state.core) / 8, 0x1234567);
  hash = MixWords(state.network.data(), state.network.size(), hash) * 0x94D049BB133111EBu;
  hash ^= hash >> 31;
  return hash == 0 ? 1 : hash;
}

// Numbers the hashes of the states seen so far, from 0.
class Seen {
 public:
  Seen() : slots_(1 << 16) {}

  size_t size() const { return size_; }
  // The number of the hash, and whether it is new.
  std::pair<uint32_t, bool> Add(uint64_t hash) {
    if (size_ * 10 > slots_.size() * 6) Grow();
    Slot* const slot = Find(hash);
    if (slot->hash != 0) return {slot->number, false};
    *slot = {hash, static_cast<uint32_t>(size_)};
    ++size_;
    return {slot->number, true};
  }

 private:
  struct Slot {
    uint64_t hash = 0;  // 0: free
    uint32_t number = 0;
  };

  Slot* Find(uint64_t hash) {
    const size_t mask = slots_.size() - 1;
    size_t at = (hash * 0x9E3779B97F4A7C15u) & mask;
    while (slots_[at].hash != 0 && slots_[at].hash != hash) at = (at + 1) & mask;
    return &slots_[at];
  }

  void Grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.hash != 0) *Find(slot.hash) = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

struct SearchOptions {
  size_t max_states = 0;  // after this many states the search ends, and `complete` is false
  // False: from every state something happens that is no fault, until the job is done. True: from
  // every state a finished state can be reached without a fault. Then a circle of messages that
  // helps nobody is a dead end, too. It is examined only if the search was complete.
  bool must_end = false;
  const char* dead_end = "";  // the violation if that does not hold
};

template <typename Machine>
class Searcher {
 public:
  using State = decltype(std::declval<Machine&>().Initial());
  using Step = typename Machine::Step;
  // The violation of a state, or an empty text.
  using Check = std::string (*)(const State&);

  Searcher(Machine machine, Check check, const SearchOptions& options)
      : machine_(std::move(machine)), check_(check), options_(options) {}

  Verdict Run() {
    State first = machine_.Initial();
    seen_.Add(HashOf(first));
    parents_.push_back({0, 0});
    queue_.emplace_back(std::move(first), 0);
    size_t expanded = 0, level_ends = 1;
    verdict_.complete = true;
    while (!queue_.empty() && verdict_.violation.empty()) {
      if (seen_.size() > options_.max_states) {
        verdict_.complete = false;
        break;
      }
      const std::pair<State, uint32_t> entry = std::move(queue_.front());
      queue_.pop_front();
      Expand(entry.first, entry.second);
      if (++expanded == level_ends) {
        ++verdict_.depth;
        level_ends = expanded + queue_.size();
      }
    }
    if (options_.must_end && verdict_.complete && verdict_.violation.empty()) FindDeadEnd();
    verdict_.states = seen_.size();
    return std::move(verdict_);
  }

 private:
  struct Parent {
    uint32_t state = 0;
    uint32_t step = 0;  // number among its successors
  };
  struct Edge {
    uint32_t from = 0;
    uint32_t to = 0;
  };

  void Expand(const State& state, uint32_t id) {
    const bool finished = machine_.Finished(state);
    verdict_.done_states += finished ? 1 : 0;
    if (finished && options_.must_end) finished_.push_back(id);
    bool goes_on = false;
    uint32_t step = 0;
    machine_.Successors(state, false, [&](Step&& next) {
      const uint32_t number = step++;
      ++verdict_.transitions;
      if (!verdict_.violation.empty()) return;
      std::string broken = next.violation.empty() ? check_(next.next) : std::move(next.violation);
      if (!broken.empty()) {
        verdict_.violation = std::move(broken);
        Trace(id);
        Append(state, number);
        return;
      }
      const auto [to, fresh] = seen_.Add(HashOf(next.next));
      if (to != id && !next.fault) {
        goes_on = true;
        if (options_.must_end) edges_.push_back({id, to});
      }
      if (!fresh) return;
      parents_.push_back({id, number});
      queue_.emplace_back(std::move(next.next), to);
    });
    if (verdict_.violation.empty() && !goes_on && !finished) {
      verdict_.violation = options_.dead_end;
      Trace(id);
    }
  }

  // Goes back from the finished states. A state that is not met on the way is a dead end.
  void FindDeadEnd() {
    std::vector<uint32_t> begin(parents_.size() + 1), from(edges_.size());
    for (const Edge& edge : edges_) ++begin[edge.to];
    for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    for (const Edge& edge : edges_) from[--begin[edge.to]] = edge.from;
    std::vector<bool> ends(parents_.size());
    std::vector<uint32_t> stack = finished_;
    for (const uint32_t id : stack) ends[id] = true;
    while (!stack.empty()) {
      const uint32_t id = stack.back();
      stack.pop_back();
      for (uint32_t i = begin[id]; i < begin[id + 1]; ++i) {
        if (ends[from[i]]) continue;
        ends[from[i]] = true;
        stack.push_back(from[i]);
      }
    }
    const auto dead = std::find(ends.begin(), ends.end(), false);
    if (dead == ends.end()) return;
    verdict_.violation = options_.dead_end;
    Trace(static_cast<uint32_t>(dead - ends.begin()));
  }

  // Repeats the way to a state, with words.
  void Trace(uint32_t id) {
    std::vector<uint32_t> steps;
    for (uint32_t at = id; at != 0; at = parents_[at].state) steps.push_back(parents_[at].step);
    std::reverse(steps.begin(), steps.end());
    State state = machine_.Initial();
    for (const uint32_t step : steps) state = Append(state, step);
  }

  State Append(const State& state, uint32_t wanted) {
    State result;
    uint32_t step = 0;
    machine_.Successors(state, true, [&](Step&& next) {
      if (step++ != wanted) return;
      verdict_.trace.push_back(std::move(next.what));
      result = std::move(next.next);
    });
    return result;
  }

  Machine machine_;
  const Check check_;
  const SearchOptions options_;
  Seen seen_;
  std::vector<Parent> parents_;
  std::vector<Edge> edges_;         // without faults; only if must_end
  std::vector<uint32_t> finished_;  // only if must_end
  std::deque<std::pair<State, uint32_t>> queue_;
  Verdict verdict_;
};

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_SEARCHER_H_
