#include "client/storage_room.h"

#include "absl/strings/str_cat.h"

namespace capstan::client {

using training::spec::BytesText;

std::string RoomText(const training::spec::StorageNeed& need, const services::DiskRoom& room,
                     const std::string& folder) {
  std::string out = absl::StrCat("      ", BytesText(room.free_bytes), " free in ", folder, "\n");
  if (need.Most() > room.usable_bytes()) {
    absl::StrAppend(&out, "      warning: of these ", BytesText(room.usable_bytes()),
                    " can be used, so checkpoints will fail; lower checkpoint.keep_latest or "
                    "choose another checkpoint.storage_path\n");
  }
  return out;
}

absl::Status LastVersionFits(const training::spec::StorageNeed& need,
                             const services::DiskRoom& room, const std::string& folder) {
  if (need.LastVersion() <= room.usable_bytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(folder, ": no space left for this job: its last version and weights are up to ",
                   BytesText(need.LastVersion()), ", and ", BytesText(room.usable_bytes()),
                   " can be used (", BytesText(room.free_bytes), " are free, ",
                   BytesText(room.kept_bytes), " are reserved); nothing was started"));
}

absl::Status CheckRoom(const job::v1::ResolvedSpec& plan, const std::string& folder,
                       const Console& console) {
  const absl::StatusOr<services::DiskRoom> room = services::RoomOf(folder);
  if (!room.ok()) return room.status();
  const training::spec::StorageNeed need = training::spec::StorageNeedOf(plan);
  if (absl::Status status = LastVersionFits(need, *room, folder); !status.ok()) return status;
  if (room->free_bytes < INT64_MAX) console.Note(RoomText(need, *room, folder));
  return absl::OkStatus();
}

}  // namespace capstan::client
