#include "tests/model/residual_protocol.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan::model {
namespace {

// A message: whether it is a file, its lineage, version or step, lane, residual, and the writer.
uint64_t PackUnit(bool file, int lineage, int step, int lane, int residual, int writer) {
  const auto byte = [](int value, int at) { return static_cast<uint64_t>(value) << (8 * at); };
  return byte(file ? 1 : 0, 5) | byte(lineage, 4) | byte(step, 3) | byte(lane, 2) |
         byte(residual, 1) | byte(writer, 0);
}
int ByteOf(uint64_t message, int at) { return static_cast<int>(message >> (8 * at) & 255); }

uint8_t ResidualOf(int lane, int applied) { return static_cast<uint8_t>(lane * 16 + applied); }

class ResidualMachine {
 public:
  struct Step {
    ResidualState next;
    std::string what;
    bool fault = false;
    std::string violation;
  };
  using Visit = std::function<void(Step&&)>;

  explicit ResidualMachine(const ResidualWorld& world) : world_(world) {}

  ResidualState Initial() const {
    ResidualState state;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      state.core.owner[lane] = static_cast<uint8_t>(lane % world_.workers);
      state.core.manifest[0].residual[lane] = ResidualOf(lane, 0);
    }
    for (int w = 0; w < kUnitOwners; ++w) {
      state.core.manifest[0].by_node[w] = ResidualOf(w < world_.lanes ? w : 0, 0);
      if (w >= world_.workers) state.core.worker[w].alive = 0;
    }
    return state;
  }

  bool Finished(const ResidualState& state) const { return state.core.version == world_.steps; }

  void Successors(const ResidualState& from, bool describe, const Visit& visit) {
    const ResidualCore& core = from.core;
    const auto go = [&](ResidualState next, bool fault, const char* what, int a, int b,
                        std::string violation = "") {
      std::sort(next.network.begin(), next.network.end());
      next.network.erase(std::unique(next.network.begin(), next.network.end()), next.network.end());
      // A message of a lineage that is over changes nothing.
      next.network.erase(std::remove_if(next.network.begin(), next.network.end(),
                                        [&next](uint64_t message) {
                                          return ByteOf(message, 4) < next.core.lineage;
                                        }),
                         next.network.end());
      Step step;
      step.next = std::move(next);
      step.fault = fault;
      step.violation = std::move(violation);
      if (describe) step.what = absl::StrCat(fault ? "* " : "  ", what, " ", a, " ", b);
      visit(std::move(step));
    };
    if (Finished(from)) return;

    for (int w = 0; w < world_.workers; ++w) {
      const UnitOwner& worker = core.worker[w];
      if (worker.alive == 0) {
        ResidualState next = from;
        next.core.worker[w] = UnitOwner();
        go(std::move(next), false, "a process begins at worker", w, -1);
        continue;
      }
      if (worker.lineage != core.lineage) {
        ResidualState next = from;
        UnitOwner& to = next.core.worker[w];
        const bool keeps = world_.bug == ResidualBug::kResidualsSurvive && worker.lineage > 0;
        const UnitOwner before = worker;
        to = UnitOwner();
        to.lineage = core.lineage;
        const UnitManifest& base = core.manifest[core.base];
        for (int lane = 0; lane < world_.lanes; ++lane) {
          if (core.owner[lane] != w) continue;
          to.now[lane] =
              world_.bug == ResidualBug::kResidualByNode ? base.by_node[w] : base.residual[lane];
          if (keeps && before.now[lane] != kNothing) to.now[lane] = before.now[lane];
        }
        go(std::move(next), false, "a view of lineage is read by worker", core.lineage, w);
        continue;
      }
      if (worker.version == kNothing || worker.version < core.version) {
        TakeVersion(from, w, go);
      }
      if (worker.version != kNothing && worker.version < world_.steps && !Stops(core, worker)) {
        for (int lane = 0; lane < world_.lanes; ++lane) Compute(from, w, lane, go);
      }
    }
    for (const uint64_t message : from.network) {
      if (ByteOf(message, 5) == 0) {
        TakeContribution(from, message, go);
      } else {
        TakeFile(from, message, go);
      }
    }
    Decide(from, go);
    Coordinate(from, go);
    Faults(from, go);
  }

 private:
  int Applied(int lane, int version) const {
    int applied = 0;
    for (int step = 0; step < version; ++step) {
      applied += step != world_.nonfinite_step && HasSamples(lane, step) ? 1 : 0;
    }
    return applied;
  }
  bool HasSamples(int lane, int step) const {
    return step != world_.empty_step || lane != world_.lanes - 1;
  }
  uint8_t Right(int lane, int version) const { return ResidualOf(lane, Applied(lane, version)); }
  bool Saved(const ResidualCore& core, int version) const {
    return version < world_.steps && ((world_.checkpoints >> version & 1) != 0 ||
                                      (core.stopped != 0 && version == core.version));
  }
  static bool Stops(const ResidualCore& core, const UnitOwner& worker) {
    return core.stopped != 0 && worker.version == core.version;
  }
  bool OwnsAny(const ResidualCore& core, int w) const {
    return std::find(core.owner, core.owner + world_.lanes, w) != core.owner + world_.lanes;
  }

  template <typename Go>
  void TakeVersion(const ResidualState& from, int w, const Go& go) {
    ResidualState next = from;
    UnitOwner& worker = next.core.worker[w];
    const int base = from.core.manifest[from.core.base].version;
    const int had = worker.version == kNothing ? base : worker.version;
    const int missed = from.core.version - had - (worker.version == kNothing ? 0 : 1);
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (worker.next[lane] == kNothing) continue;
      // The version says which of the steps behind it were skipped.
      const bool told = missed == 0 || world_.bug != ResidualBug::kMissedStepsAreApplied;
      const bool applied = !told || had != world_.nonfinite_step;
      if (applied) worker.now[lane] = worker.next[lane];
      worker.next[lane] = kNothing;
    }
    worker.version = from.core.version;
    worker.computed = 0;
    if (Saved(from.core, worker.version) && worker.version > base &&
        world_.bug != ResidualBug::kWrittenAfterTheNext) {
      Write(next, w);
    }
    go(std::move(next), false, "a version is taken by worker", worker.version, w);
  }

  void Write(ResidualState& state, int w) const {
    const UnitOwner& worker = state.core.worker[w];
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (state.core.owner[lane] != w || worker.now[lane] == kNothing) continue;
      const bool late =
          world_.bug == ResidualBug::kWrittenAfterTheNext && worker.next[lane] != kNothing;
      state.network.push_back(PackUnit(true, worker.lineage, worker.version, lane,
                                       late ? worker.next[lane] : worker.now[lane], w));
    }
  }

  template <typename Go>
  void Compute(const ResidualState& from, int w, int lane, const Go& go) {
    const UnitOwner& worker = from.core.worker[w];
    if (from.core.owner[lane] != w || (worker.computed >> lane & 1) != 0 ||
        worker.now[lane] == kNothing || !HasSamples(lane, worker.version)) {
      return;
    }
    ResidualState next = from;
    UnitOwner& to = next.core.worker[w];
    to.computed |= static_cast<uint8_t>(1 << lane);
    to.next[lane] = static_cast<uint8_t>(worker.now[lane] + 1);
    next.network.push_back(
        PackUnit(false, worker.lineage, worker.version, lane, worker.now[lane], w));
    if (world_.bug == ResidualBug::kCommitBeforeApplied) {
      to.now[lane] = to.next[lane];
      to.next[lane] = kNothing;
    }
    const int base = from.core.manifest[from.core.base].version;
    if (world_.bug == ResidualBug::kWrittenAfterTheNext && Saved(from.core, worker.version) &&
        worker.version > base) {
      Write(next, w);
    }
    go(std::move(next), false, "a lane is computed by worker", lane, w);
  }

  template <typename Go>
  void TakeContribution(const ResidualState& from, uint64_t message, const Go& go) {
    const ResidualCore& core = from.core;
    const int step = ByteOf(message, 3), lane = ByteOf(message, 2);
    if (ByteOf(message, 4) != core.lineage || step != core.version || core.stopped != 0 ||
        (core.held >> lane & 1) != 0) {
      return;
    }
    ResidualState next = from;
    next.core.held |= static_cast<uint8_t>(1 << lane);
    const bool right = ByteOf(message, 1) == Right(lane, step);
    go(std::move(next), false, "a contribution is counted: lane, step", lane, step,
       right ? "" : absl::StrCat("E: lane ", lane, " of step ", step, " has another residual"));
  }

  template <typename Go>
  void TakeFile(const ResidualState& from, uint64_t message, const Go& go) {
    const int version = ByteOf(message, 3), lane = ByteOf(message, 2);
    const ResidualCore& core = from.core;
    if (ByteOf(message, 4) != core.lineage || version <= core.saved ||
        (core.collected[version] >> lane & 1) != 0) {
      return;
    }
    ResidualState next = from;
    next.core.collected[version] |= static_cast<uint8_t>(1 << lane);
    next.core.files[version][lane] = static_cast<uint8_t>(ByteOf(message, 1));
    go(std::move(next), false, "a file of residuals is there: version, lane", version, lane);
  }

  template <typename Go>
  void Decide(const ResidualState& from, const Go& go) {
    const ResidualCore& core = from.core;
    if (core.stopped != 0) return;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (HasSamples(lane, core.version) && (core.held >> lane & 1) == 0) return;
    }
    ResidualState next = from;
    next.core.held = 0;
    ++next.core.version;
    if (core.ordered != 0 && next.core.version < world_.steps) next.core.stopped = 1;
    const int version = next.core.version;
    go(std::move(next), false, "a step is decided, version", version, -1);
  }

  template <typename Go>
  void Coordinate(const ResidualState& from, const Go& go) {
    const ResidualCore& core = from.core;
    const auto all = static_cast<uint8_t>((1 << world_.lanes) - 1);
    for (int version = core.saved + 1; version <= core.version && version < world_.steps;
         ++version) {
      if (!Saved(core, version) || core.manifests == kUnitManifests) continue;
      const bool whole = core.collected[version] == all;
      if (!whole && world_.bug != ResidualBug::kManifestWithoutAUnit) continue;
      ResidualState next = from;
      UnitManifest& manifest = next.core.manifest[next.core.manifests++];
      manifest.lineage = core.lineage;
      manifest.version = static_cast<uint8_t>(version);
      std::string violation;
      for (int lane = 0; lane < world_.lanes; ++lane) {
        const bool here = (core.collected[version] >> lane & 1) != 0;
        manifest.residual[lane] = here ? core.files[version][lane] : ResidualOf(lane, 0);
        manifest.by_node[core.owner[lane]] = manifest.residual[lane];
        if (manifest.residual[lane] != Right(lane, version) && here) {
          violation = absl::StrCat("E: the manifest of version ", version,
                                   " has another residual of lane ", lane);
        }
      }
      next.core.saved = static_cast<uint8_t>(version);
      go(std::move(next), false, "a manifest is committed: version", version, -1,
         std::move(violation));
      break;  // they are committed in their order
    }
    // A hand-over goes on once its version is saved.
    if (core.stopped != 0 && core.saved == core.version) {
      ResidualState next = from;
      next.core.owner[0] = static_cast<uint8_t>((core.owner[0] + 1) % world_.workers);
      BeginLineage(next.core);
      const int lineage = next.core.lineage;
      go(std::move(next), false, "lane 0 moves in lineage", lineage, -1);
    }
    for (int lane = 0; lane < world_.lanes; ++lane) {
      const int owner = core.owner[lane];
      // A new process of the worker is another member.
      const bool lost = core.worker[owner].alive == 0;
      if (lost) Recover(from, owner, "the lanes are lost of worker", false, go);
    }
  }

  void BeginLineage(ResidualCore& core) const {
    ++core.lineage;
    core.base = static_cast<uint8_t>(core.manifests - 1);
    core.version = core.manifest[core.base].version;
    core.saved = core.version;
    core.held = core.stopped = core.ordered = 0;
    for (uint8_t& mask : core.collected) mask = 0;
    for (auto& version : core.files) std::fill(std::begin(version), std::end(version), 0);
  }

  // Its lanes go to the worker after it.
  template <typename Go>
  void Recover(const ResidualState& from, int lost, const char* what, bool fault, const Go& go) {
    ResidualState next = from;
    const int taker = (lost + 1) % world_.workers;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (from.core.owner[lane] != lost) continue;
      next.core.owner[lane] = static_cast<uint8_t>(taker);
      if (world_.bug != ResidualBug::kReissueWithNothing) continue;
      next.core.worker[taker].now[lane] = ResidualOf(lane, 0);
      next.core.worker[taker].computed &= static_cast<uint8_t>(~(1 << lane));
    }
    if (fault) ++next.core.suspicions;
    if (world_.bug != ResidualBug::kReissueWithNothing) BeginLineage(next.core);
    if (next.core.lineage < 20) go(std::move(next), fault, what, lost, -1);
  }

  template <typename Go>
  void Faults(const ResidualState& from, const Go& go) {
    const ResidualCore& core = from.core;
    if (core.ordered == 0 && core.stopped == 0 && core.moves < world_.moves) {
      ResidualState next = from;
      next.core.ordered = 1;
      ++next.core.moves;
      go(std::move(next), true, "a lane is to move", -1, -1);
    }
    for (int w = 0; w < world_.workers; ++w) {
      if (core.worker[w].alive == 0) continue;
      if (core.deaths < world_.deaths) {
        ResidualState next = from;
        next.core.worker[w] = UnitOwner();
        next.core.worker[w].alive = 0;
        ++next.core.deaths;
        // The coordinator hears of it before a new process begins: the session ended.
        if (OwnsAny(core, w)) {
          ResidualState heard = std::move(next);
          Recover(heard, w, "death of worker", false,
                  [&](ResidualState after, bool, const char*, int a, int b) {
                    go(std::move(after), true, "death of worker", a, b);
                  });
        } else {
          go(std::move(next), true, "death of worker", w, -1);
        }
      }
      if (core.suspicions < world_.suspicions && world_.workers > 1 && OwnsAny(core, w)) {
        Recover(from, w, "is taken for lost: worker", true, go);
      }
    }
    if (core.crashes < world_.crashes) {
      ResidualState next = from;
      ++next.core.crashes;
      BeginLineage(next.core);
      go(std::move(next), true, "the store crashes", -1, -1);
    }
  }

  const ResidualWorld world_;
};

std::string NoViolation(const ResidualState&) { return ""; }

}  // namespace

Verdict Search(const ResidualWorld& world, size_t max_states) {
  SearchOptions options;
  options.max_states = max_states;
  options.must_end = true;
  options.dead_end = "END: the job cannot end";
  return Searcher<ResidualMachine>(ResidualMachine(world), NoViolation, options).Run();
}

}  // namespace capstan::model
