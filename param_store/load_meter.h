// What a shard does for one job right now, for people: rates over about a second, quantiles of the
// last frames.
//
// Not thread-safe: of its job's strand.
#ifndef CAPSTAN_PARAM_STORE_LOAD_METER_H_
#define CAPSTAN_PARAM_STORE_LOAD_METER_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "capstan/common/v1/common.pb.h"

namespace capstan::param_store {

class LoadMeter {
 public:
  void Pushed(absl::Duration took, size_t bytes);  // a frame
  void Pulled(absl::Duration took);                // a version, for one worker
  void Sent(size_t bytes);

  // Rates are of the time between the last two calls that lay a second or more apart. `now`:
  // monotonic. `version`: the newest of `lineage`; -1: none yet.
  common::v1::ShardLoad Report(absl::Duration now, int64_t lineage, int64_t version);

 private:
  // The newest durations, in seconds.
  class Window {
   public:
    void Add(double seconds);
    std::optional<double> P99() const;

   private:
    std::array<float, 256> seconds_ = {};
    int64_t count_ = 0;
  };

  Window pushes_;
  Window pulls_;
  double pushed_ = 0;  // since `begin_`, like the rest
  double pulled_ = 0;
  double bytes_in_ = 0;
  double bytes_out_ = 0;
  int64_t lineage_ = 0;
  int64_t base_ = 0;     // its version when it was first reported
  int64_t traffic_ = 0;  // bytes in and out since then
  absl::Duration begin_ = -absl::InfiniteDuration();
  common::v1::ShardLoad rates_;
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_LOAD_METER_H_
