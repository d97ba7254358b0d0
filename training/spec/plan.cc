// The plan: what a resolved spec implies, for the person who submits it.
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "training/spec/resolve.h"

namespace capstan::training::spec {
namespace {

constexpr int64_t kFewSamplesPerLane = 16;  // below it the price of lanes shows, on CPUs

std::string Bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

std::string Count(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace

std::string PlanText(const job::v1::ResolvedSpec& spec) {
  const auto& file = spec.spec();
  const int64_t weights = [&] {
    int64_t floats = 0;
    for (const auto& parameter : spec.parameters()) {
      int64_t elements = 1;
      for (const int64_t dimension : parameter.shape()) elements *= dimension;
      floats += elements;
    }
    return floats;
  }();
  std::string out = absl::StrCat("Plan  ", Count(spec.num_workers(), "worker"), " x ",
                                 Count(spec.devices_per_worker(), "device"));
  if (UsesShards(spec)) absl::StrAppend(&out, " + ", Count(spec.num_shards(), "shard"));
  absl::StrAppend(&out, ", ", file.kvstore().type(),
                  file.resources().min_workers() < spec.num_workers()
                      ? absl::StrCat(", starts with ", file.resources().min_workers(), " or more\n")
                      : ", start all or none\n");
  absl::StrAppend(&out, "      ", file.model().name(), ", ", weights, " parameters; ",
                  file.data().format() == "idx" ? file.data().uri() : file.data().format(), ", ",
                  spec.dataset().train_samples(), " + ", spec.dataset().test_samples(),
                  " samples\n");
  const int64_t last =
      spec.dataset().train_samples() - (spec.steps_per_epoch() - 1) * spec.global_batch();
  absl::StrAppend(&out, "      global batch ", spec.global_batch(), " in ",
                  Count(spec.lanes(), "lane"), ", ", Count(spec.steps_per_epoch(), "step"),
                  "/epoch");
  if (file.data().partition() == "global" && last != spec.global_batch())
    absl::StrAppend(&out, " (the last of ", last, ")");
  absl::StrAppend(&out, ", ", Count(spec.total_steps(), "step"), "\n");
  absl::StrAppend(&out, "      ", Bytes(4.0 * weights), " of weights in ",
                  Count(spec.chunk_count(), "chunk"));
  if (UsesShards(spec)) {
    const std::string flat = Bytes(4.0 * spec.flat_floats());
    absl::StrAppend(&out, "; per step and worker: push ", flat, ", pull ", flat);
  }
  out += "\n";
  const double state = file.training().optimizer().momentum() > 0 ? 1 : 0;
  if (UsesShards(spec)) {
    // Two versions and one being read, optimizer state, the snapshot, and pending nodes: of two
    // neighbours that are both there only their sum is held, so at most every other lane.
    const int32_t pending = (spec.lanes() + 1) / 2;
    absl::StrAppend(&out, "      memory of a shard at most ",
                    Bytes(4.0 * spec.flat_floats() / spec.num_shards() * (4 + 2 * state + pending)),
                    "\n");
  }
  if (spec.checkpoint_every_steps() > 0) {
    absl::StrAppend(&out, "      checkpoint every ", Count(spec.checkpoint_every_steps(), "step"));
  } else if (file.checkpoint().has_every_seconds()) {
    absl::StrAppend(&out, "      checkpoint every ", file.checkpoint().every_seconds(), " s");
  } else {
    absl::StrAppend(&out, "      checkpoint at the end alone");
  }
  absl::StrAppend(&out, "; at most ", Count(file.recovery().max_restarts(), "restart"), "\n");
  const int64_t per_lane = spec.global_batch() / spec.lanes();
  if (per_lane < kFewSamplesPerLane) {
    absl::StrAppend(&out, "      warning: ", Count(per_lane, "sample"), " per lane; below ",
                    kFewSamplesPerLane, " a CPU spends more on lanes than on training\n");
  }
  return out;
}

}  // namespace capstan::training::spec
