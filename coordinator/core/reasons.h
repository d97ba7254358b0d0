// The reasons and conditions of jobs, as interface.md lists them.
#ifndef CAPSTAN_COORDINATOR_CORE_REASONS_H_
#define CAPSTAN_COORDINATOR_CORE_REASONS_H_

#include <string>

namespace capstan::coordinator::core {

// Why a job or task fails if it gave no reason of its own.
inline constexpr char kInternalError[] = "InternalError";
// Why a job is RECOVERING that goes on without a shard which left on purpose; and its event.
inline constexpr char kShardLeft[] = "ShardLeft";
// Likewise one whose lanes get other owners on purpose, which takes a checkpoint with their residuals.
inline constexpr char kLanesMove[] = "LanesMove";
// The condition of a job whose last checkpoint could not be written.
inline constexpr char kCheckpointDegraded[] = "CHECKPOINT_DEGRADED";
inline constexpr char kInterrupted[] = "Interrupted";  // SUSPENDED by the end of all its services

// A sentence of another process, short enough to be shown everywhere.
std::string Sentence(const std::string& text);
// Reasons end up in metric labels and scripts: `reason` if interface.md lists it, else kInternalError.
std::string KnownReason(const std::string& reason);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_REASONS_H_
