// `capstan bench kvstore`: the job that it trains, and what that job's history says about the
// exchange between workers and shards. Makes no calls.
#ifndef CAPSTAN_CLIENT_BENCH_KVSTORE_BENCH_H_
#define CAPSTAN_CLIENT_BENCH_KVSTORE_BENCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "capstan/job/v1/job_spec.pb.h"

namespace capstan::client {

struct KvstoreBench {
  int workers = 1;
  int shards = 1;
  std::string kvstore = "dist_sync";
  std::string compression = "none";
  absl::Duration length = absl::Seconds(3);  // of a measurement
};

// Sizes of a list like "4KiB,1MiB": a number with KiB or MiB, from 1 KiB to 1 GiB each.
// InvalidArgument: names the part.
absl::StatusOr<std::vector<int64_t>> ReadSizes(absl::string_view list);

// A network with weights of about `bytes`, trained on one small image per worker and step, so that
// most of a step is exchange. It runs on CPUs for longer than a measurement takes, and saves
// nothing. InvalidArgument: the message has a line for each error.
absl::StatusOr<job::v1::JobSpec> MakeBenchJob(const KvstoreBench& bench, int64_t bytes);

// Of the network that MakeBenchJob makes: 4 bytes per parameter.
int64_t WeightBytes(int64_t bytes);

// Means over the steps of all workers, in seconds.
struct ExchangeFigures {
  int64_t steps = 0;  // those of each worker counted
  double step = 0;
  double computing = 0;
  double push = 0;  // handing gradients to the streams
  double wait = 0;  // from then on until the first chunk of the new weights is here
  double pull = 0;  // from the first chunk to the last

  double exchange() const { return push + wait + pull; }
};

// Of the points that come later than `warm_up` after the first one, up to the first that comes
// `length` later still, which has the steps before it. Unset: the history does not go that far yet.
std::optional<ExchangeFigures> FiguresOf(const std::vector<job::v1::MetricPoint>& points,
                                         absl::Duration warm_up, absl::Duration length);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_BENCH_KVSTORE_BENCH_H_
