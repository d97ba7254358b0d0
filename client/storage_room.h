// Checks, before anything is started, whether the files of a job fit onto the disk of its folder.
//
// Thread-safe. All functions are pure, except CheckRoom, which looks at the disk.
#ifndef CAPSTAN_CLIENT_STORAGE_ROOM_H_
#define CAPSTAN_CLIENT_STORAGE_ROOM_H_

#include <string>

#include "absl/status/status.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "client/console.h"
#include "services/files/files.h"
#include "training/spec/resolve.h"

namespace capstan::client {

// The last lines of the plan: how much is free in `folder`, and a warning if the checkpoints that
// are kept do not all fit.
std::string RoomText(const training::spec::StorageNeed& need, const services::DiskRoom& room,
                     const std::string& folder);

// InvalidArgument: not even the last version and the weights fit, so the job could not succeed.
// Names the folder and the numbers.
absl::Status LastVersionFits(const training::spec::StorageNeed& need,
                             const services::DiskRoom& room, const std::string& folder);

// Does both for the absolute `folder`, which must exist. Prints the text as a note to the person.
absl::Status CheckRoom(const job::v1::ResolvedSpec& plan, const std::string& folder,
                       const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_STORAGE_ROOM_H_
