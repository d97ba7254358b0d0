// All that the coordinator knows about one job.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_RECORD_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_RECORD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "capstan/node/v1/node.pb.h"
#include "coordinator/core/gang.h"
#include "coordinator/core/log_buffer.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// One worker of a job's gang. The rank belongs to one incarnation of one node for ever; what takes
// its lanes over is another rank.
struct Rank {
  int32_t index = 0;
  std::string node;
  std::string host;
  int64_t incarnation = 0;
  std::vector<int> devices;

  bool probed = false;
  node::v1::ProbeResult probe;

  bool present = false;       // in the node's newest heartbeat
  bool seen = false;          // in any heartbeat
  node::v1::TaskState state;  // the newest report
  bool lost = false;          // owns no lane any more
  bool gone = false;          // runs nowhere, as far as anybody can know
  std::string why;            // lost, or failed: a sentence
  bool failure_told = false;

  absl::Duration probe_sent = -absl::InfiniteDuration();
  absl::Duration start_sent = -absl::InfiniteDuration();
  absl::Duration view_sent = -absl::InfiniteDuration();
  absl::Duration stop_sent = -absl::InfiniteDuration();
};

// One shard of a job's gang; bound to one incarnation like a rank.
struct Shard {
  int32_t index = 0;
  std::string node;
  std::string host;
  int64_t incarnation = 0;
  std::string address;

  bool present = false;
  bool seen = false;
  node::v1::ShardState state;
  bool lost = false;
  bool gone = false;
  std::string why;
  bool failure_told = false;
  node::v1::WrittenFiles final_files;  // of the last version, once reported

  absl::Duration lineage_sent = -absl::InfiniteDuration();
  absl::Duration view_sent = -absl::InfiniteDuration();
  int64_t generation_sent = 0;
  absl::Duration end_sent = -absl::InfiniteDuration();
};

enum class ManifestPhase { kNone, kWriting, kRetry, kCommitted };

struct JobRecord {
  explicit JobRecord(const CoreOptions& options)
      : max_events(options.max_events), logs(options.max_log_lines, options.max_log_bytes) {}

  // -- what was asked for
  std::string id;
  int64_t sequence = 0;  // order of submission
  std::string request_id;
  job::v1::JobSpec spec;
  std::string spec_bytes;  // deterministic serialization, to compare
  bool cancel_asked = false;
  absl::Duration cancel_since;

  // -- what people see
  common::v1::JobState state = common::v1::JOB_STATE_PENDING;
  std::string reason;
  std::string message;
  std::string waiting;  // replaces `message` while it is not empty
  job::v1::Progress progress;
  std::map<int32_t, common::v1::EpochRecord> epochs;
  std::string weights_sha256;
  std::string checkpoint_uri;
  int64_t samples_used = 0;
  const int max_events;
  std::vector<job::v1::Event> events;
  std::vector<int64_t> event_numbers;  // of `events`, growing
  int64_t last_event = 0;
  LogBuffer logs;
  int64_t counted_log_bytes = 0;  // of an ended job, in the sum over all ended jobs
  absl::Time submitted_at;
  absl::Time started_at = absl::InfinitePast();  // InfinitePast: not yet
  absl::Time finished_at = absl::InfinitePast();

  // -- the gang
  std::vector<Rank> ranks;
  std::vector<Shard> shards;
  int64_t probe_id = 0;
  absl::Duration started;  // when it got its gang
  std::string requeue;     // set: the gang fell apart before it had a view; why

  // -- history
  std::optional<job::v1::ResolvedSpec> resolved;
  std::string resolved_bytes;
  std::string digest;                                     // 32 bytes
  common::v1::View view;                                  // lineage 0: none yet
  absl::Duration takeover_at = absl::InfiniteDuration();  // finite: lanes wait for new owners
  node::v1::LeadState lead;

  // -- the end
  node::v1::WrittenFiles weights_files;  // of the rank that owned lane 0, of the last version
  ManifestPhase manifest = ManifestPhase::kNone;
  int manifest_attempts = 0;
  absl::Duration manifest_retry_at;

  bool wound_down = false;  // ended, and nothing of it runs anywhere

  // -- the journal: what was saved, and what people were told
  std::string saved;  // durable facts, serialized, without progress
  int64_t saved_event = 0;
  std::vector<int64_t> dropped_events;  // since the last save
  common::v1::JobState told_state = common::v1::JOB_STATE_UNSPECIFIED;
  int64_t told_generation = 0;

  // -- waiting
  std::vector<int64_t> progress_mark;  // componentwise maximum so far
  absl::Duration progress_at;          // when a component last grew
  absl::Duration waiting_said_at = -absl::InfiniteDuration();
  absl::Duration waiting_logged_at = -absl::InfiniteDuration();

  bool ended() const {
    return state == common::v1::JOB_STATE_SUCCEEDED || state == common::v1::JOB_STATE_FAILED ||
           state == common::v1::JOB_STATE_CANCELLED;
  }
  bool has_view() const { return view.lineage() > 0; }
  bool AllShardsReady() const;
  // Null: there is none.
  Rank* FindRank(int32_t index, const std::string& node, int64_t incarnation);
  Shard* FindShard(int32_t index, const std::string& node, int64_t incarnation);
  // The rank that owns lane 0 now, or null.
  Rank* LaneZeroOwner();

  void AddEvent(absl::Time wall, const std::string& type, const std::string& message);
  void AddLog(absl::Time wall, const std::string& level, const std::string& text);

  job::v1::Job ToProto(bool with_history) const;
};

// "w1 on host b": how sentences name a member.
std::string NameOf(const Rank& rank);
std::string NameOf(const Shard& shard);

// Sets the timestamp; nothing where the time is not finite.
void SetTime(absl::Time time, google::protobuf::Timestamp* out);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_RECORD_H_
