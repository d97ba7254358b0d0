#include "param_store/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "param_store/checkpoint/shard_file.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"
#include "training/lanes/lane_tree.h"

namespace capstan::param_store {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{16} << 20;
constexpr int64_t kBlockBytes = int64_t{1} << 20;
// A header of ours has less than 200 bytes for each tensor.
constexpr int64_t kHeaderBaseBytes = int64_t{1} << 16;
constexpr int64_t kHeaderBytesPerChunk = 512;

absl::Status Corrupt(absl::string_view file, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(file, ": ", what));
}

BaseWeightsError ErrorOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {};
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
      return {"DataMissing", status};
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInvalidArgument:     // not a regular file, or too large
    case absl::StatusCode::kFailedPrecondition:  // a folder, a link
      return {"CheckpointCorrupt", status};
    default:
      return {"InternalError", status};
  }
}

// Wanted bytes of a file.
struct Piece {
  int64_t begin = 0;  // in the file
  int64_t end = 0;
  CheckpointPart part = CheckpointPart::kWeights;
  int64_t to = 0;  // offset of the first byte, from the first number of the part
};

class Reader {
 public:
  Reader(const CheckpointPass& pass, training::Manifest* manifest)
      : pass_(pass),
        first_float_(
            pass.residual_lanes == nullptr ? training::RangeOf(*pass.layout, pass.run).offset : 0),
        layout_digest_(pass.job_id.empty() ? LayoutDigest(*pass.layout) : ""),
        manifest_(*manifest) {
    if (pass.residual_lanes != nullptr) {
      wanted_.push_back({CheckpointPart::kResiduals, kResidualTensors, *pass.residual_lanes, {}});
      wanted_.back().here.assign(pass.residual_lanes->size(), false);
      return;
    }
    std::vector<int32_t> chunks(pass.run.chunk_count);
    std::iota(chunks.begin(), chunks.end(), pass.run.first_chunk);
    wanted_.push_back({CheckpointPart::kWeights, kWeightTensors, chunks, {}});
    const int states = pass.state_floats_per_weight;
    if (states > 0) wanted_.push_back({CheckpointPart::kState, StateTensors(states), chunks, {}});
    if (pass.marks_per_chunk > 0) {
      wanted_.push_back({CheckpointPart::kMarks, kMarkTensors, chunks, {}});
    }
    for (Wanted& wanted : wanted_) wanted.here.assign(pass.run.chunk_count, false);
  }

  BaseWeightsError Read() {
    const absl::Status status = ReadAll();
    if (status.ok() || !other_layout_) return ErrorOf(status);
    return {"InvalidSpec", status};
  }

 private:
  absl::Status ReadAll() {
    const std::string path = absl::StrCat(pass_.folder, "/manifest.json");
    absl::StatusOr<std::string> text = ReadManifest(path);
    if (!text.ok()) return text.status();
    absl::StatusOr<training::Manifest> manifest = training::ParseManifest(path, *text);
    if (!manifest.ok()) return manifest.status();
    manifest_ = *std::move(manifest);
    if (absl::Status status = CheckManifest(path); !status.ok()) return status;
    std::vector<const training::ManifestFile*> unused;
    for (const training::ManifestFile& file : manifest_.files) {
      // weights.safetensors only repeats the weights.
      if (!absl::StartsWith(file.name, pass_.residual_lanes == nullptr ? "shard-" : kResidualFiles))
        continue;
      absl::StatusOr<bool> used = ReadFile(file, /*whole=*/false);
      if (!used.ok()) return used.status();
      if (!*used) unused.push_back(&file);
    }
    const absl::Status status = CheckAllHere(path);
    if (status.ok()) return status;
    // A damaged header may have hidden the missing tensors. Then the error should name that file.
    for (const training::ManifestFile* file : unused) {
      if (auto read = ReadFile(*file, /*whole=*/true); !read.ok()) return read.status();
    }
    return status;
  }

  absl::Status CheckManifest(const std::string& path) const {
    if (pass_.job_id.empty()) return absl::OkStatus();
    const auto differs = [&path](absl::string_view field, absl::string_view got,
                                 absl::string_view want) {
      return Corrupt(path, absl::StrCat("'", field, "' is ", got, ", want ", want));
    };
    if (manifest_.job_id != pass_.job_id) {
      return differs("job_id", manifest_.job_id, pass_.job_id);
    }
    const std::string digest = absl::BytesToHexString(pass_.training_digest);
    if (manifest_.training_digest != digest) {
      return differs("training_digest", manifest_.training_digest, digest);
    }
    const std::string name = pass_.folder.substr(pass_.folder.rfind('/') + 1);
    const std::string own = absl::StrCat(manifest_.lineage, "-", manifest_.step);
    if (name != own) return differs("lineage and step", own, name);
    return absl::OkStatus();
  }

  absl::Status CheckAllHere(const std::string& path) const {
    for (const Wanted& wanted : wanted_) {
      for (size_t i = 0; i < wanted.here.size(); ++i) {
        if (wanted.here[i]) continue;
        return Corrupt(
            path, absl::StrCat("no file of it holds ", wanted.tensors, ".", wanted.indices[i]));
      }
    }
    return absl::OkStatus();
  }

  // Without a job there is no digest that says that the chunks are of the same tensors.
  absl::Status CheckLayout(const std::string& path, const training::SafetensorsHeader& header) {
    if (layout_digest_.empty()) return absl::OkStatus();
    const auto found = header.metadata.find(kLayoutKey);
    if (found != header.metadata.end() && found->second == layout_digest_) return absl::OkStatus();
    other_layout_ = true;
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        found == header.metadata.end()
            ? ": an earlier version wrote it and did not record whose chunks it has"
            : ": has chunks of other tensors than this model's, or of another size",
        "; `capstan checkpoint export` makes a file of it that is compared tensor by tensor"));
  }

  // The wanted pieces of the file, with their targets. DataLoss: a tensor has a wrong shape or was
  // already found.
  absl::StatusOr<std::vector<Piece>> Plan(const std::string& path,
                                          const training::SafetensorsHeader& header) {
    const std::pair<absl::string_view, std::string> metadata[] = {
        {"job_id", manifest_.job_id},
        {"lineage", absl::StrCat(manifest_.lineage)},
        {"step", absl::StrCat(manifest_.step)}};
    for (const auto& [key, want] : metadata) {
      const auto found = header.metadata.find(std::string(key));
      if (found == header.metadata.end() || found->second != want) {
        return Corrupt(path, absl::StrCat("metadata '", key, "' is not ", want));
      }
    }
    if (absl::Status status = CheckLayout(path, header); !status.ok()) return status;
    std::vector<Piece> pieces;
    for (const training::SafetensorsTensor& tensor : header.tensors) {
      absl::string_view index = tensor.name;
      const auto wanted = std::find_if(wanted_.begin(), wanted_.end(), [&index](const Wanted& w) {
        return absl::ConsumePrefix(&index, absl::StrCat(w.tensors, "."));
      });
      int32_t number = 0;  // of a chunk or a lane
      if (wanted == wanted_.end() || !absl::SimpleAtoi(index, &number)) continue;
      const std::vector<int32_t>& indices = wanted->indices;
      const auto at = std::lower_bound(indices.begin(), indices.end(), number);
      if (at == indices.end() || *at != number) continue;
      const auto i = static_cast<size_t>(at - indices.begin());
      const Place place = PlaceOf(wanted->part, number, i);
      if (tensor.dtype != place.dtype || tensor.shape != place.shape) {
        return Corrupt(path,
                       absl::StrCat(tensor.name, " at offset ", header.data_start + tensor.begin,
                                    " is not ", training::SafetensorsDtypeName(place.dtype), " [",
                                    absl::StrJoin(place.shape, ", "), "]"));
      }
      if (wanted->here[i])
        return Corrupt(path, absl::StrCat(tensor.name, " is in another file too"));
      wanted->here[i] = true;
      pieces.push_back({header.data_start + tensor.begin, header.data_start + tensor.end,
                        wanted->part, place.to});
    }
    return pieces;
  }

  absl::StatusOr<std::string> ReadManifest(const std::string& path) const {
    const auto file = pass_.open("manifest.json");
    if (!file.ok()) return file.status();
    if ((*file)->size_bytes() > kMaxManifestBytes) {
      return Corrupt(path,
                     absl::StrCat((*file)->size_bytes(), " bytes, limit ", kMaxManifestBytes));
    }
    std::string text(static_cast<size_t>((*file)->size_bytes()), '\0');
    const absl::Status status = (*file)->ReadAt(0, text.data(), (*file)->size_bytes());
    if (!status.ok()) return status;
    return text;
  }

  absl::StatusOr<training::SafetensorsHeader> ReadHeader(InputFile& file, const std::string& path) {
    const int64_t size = file.size_bytes();
    std::string head(std::min<int64_t>(size, training::kSafetensorsPrefixBytes), '\0');
    absl::Status status = file.ReadAt(0, head.data(), static_cast<int64_t>(head.size()));
    if (!status.ok()) return status;
    const absl::StatusOr<int64_t> end = training::SafetensorsHeaderEnd(path, head, size);
    if (!end.ok()) return end.status();
    const int64_t tensors = pass_.residual_lanes == nullptr ? int64_t{pass_.layout->chunk_count()}
                                                            : int64_t{training::kMaxLanes};
    const int64_t limit = kHeaderBaseBytes + kHeaderBytesPerChunk * tensors;
    if (*end > limit) {
      return Corrupt(path, absl::StrCat("a header of ", *end, " bytes, limit ", limit));
    }
    head.resize(*end);
    status = file.ReadAt(0, head.data(), *end);
    if (!status.ok()) return status;
    return training::ParseSafetensorsHeader(path, head, size);
  }

  // Returns whether the file had wanted pieces. Reads it to its end only then, or with `whole`.
  absl::StatusOr<bool> ReadFile(const training::ManifestFile& file, bool whole) {
    const std::string path = absl::StrCat(pass_.folder, "/", file.name);
    const auto opened = pass_.open(file.name);
    if (!opened.ok()) return opened.status();
    InputFile& input = **opened;
    const int64_t size = input.size_bytes();
    if (size != file.size_bytes) {
      return Corrupt(path, absl::StrCat("ends at offset ", size, ", the manifest says ",
                                        file.size_bytes, " bytes"));
    }
    std::vector<Piece> pieces;
    if (!whole) {
      absl::StatusOr<training::SafetensorsHeader> header = ReadHeader(input, path);
      if (!header.ok()) return header.status();
      absl::StatusOr<std::vector<Piece>> plan = Plan(path, *header);
      if (!plan.ok()) return plan.status();
      pieces = *std::move(plan);
      if (pieces.empty()) return false;
    }
    training::Sha256 hash;
    std::string block;
    size_t next = 0;  // pieces are in the order of the file
    for (int64_t at = 0; at < size; at += static_cast<int64_t>(block.size())) {
      block.resize(std::min(kBlockBytes, size - at));
      const int64_t end = at + static_cast<int64_t>(block.size());
      absl::Status status = input.ReadAt(at, block.data(), end - at);
      if (!status.ok()) return status;
      hash.Update(block);
      while (next < pieces.size() && pieces[next].begin < end) {
        const Piece& piece = pieces[next];
        const int64_t from = std::max(piece.begin, at);
        const int64_t to = std::min(piece.end, end);
        status = pass_.take(piece.part, piece.to + (from - piece.begin),
                            absl::string_view(block).substr(static_cast<size_t>(from - at),
                                                            static_cast<size_t>(to - from)));
        if (!status.ok()) return status;
        if (piece.end > end) break;  // continues in the next block
        ++next;
      }
    }
    const auto digest = hash.Finish();
    const std::string hex = absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
    if (hex != file.sha256) {
      return Corrupt(path, absl::StrCat("sha256 is ", hex, ", the manifest says ", file.sha256));
    }
    return true;
  }

  // The tensors of one part, by chunk or lane, and which of them have been found.
  struct Wanted {
    CheckpointPart part = CheckpointPart::kWeights;
    absl::string_view tensors;
    std::vector<int32_t> indices;  // rising
    std::vector<bool> here;
  };
  // What a tensor must be, and where its bytes belong.
  struct Place {
    training::SafetensorsDtype dtype = training::SafetensorsDtype::kF32;
    std::vector<int64_t> shape;
    int64_t to = 0;
  };
  // `i`: among the wanted ones of its part.
  Place PlaceOf(CheckpointPart part, int32_t chunk, size_t i) const {
    if (part == CheckpointPart::kResiduals) {
      const int64_t floats = pass_.layout->total_floats();
      return {training::SafetensorsDtype::kF32,
              {floats},
              static_cast<int64_t>(i) * floats * static_cast<int64_t>(sizeof(float))};
    }
    const training::FlatRange range = pass_.layout->ChunkRange(chunk);
    const auto floats = static_cast<int64_t>(sizeof(float)) * (range.offset - first_float_);
    switch (part) {
      case CheckpointPart::kWeights:
      case CheckpointPart::kResiduals:
        break;
      case CheckpointPart::kState:
        return {training::SafetensorsDtype::kF32,
                ChunkShape(range.size, pass_.state_floats_per_weight),
                floats * pass_.state_floats_per_weight};
      case CheckpointPart::kMarks:
        return {training::SafetensorsDtype::kI64,
                {pass_.marks_per_chunk},
                (chunk - pass_.run.first_chunk) * pass_.marks_per_chunk *
                    static_cast<int64_t>(sizeof(int64_t))};
    }
    return {training::SafetensorsDtype::kF32, ChunkShape(range.size, 1), floats};
  }

  const CheckpointPass& pass_;
  const int64_t first_float_;
  const std::string layout_digest_;  // empty: the job is known
  std::vector<Wanted> wanted_;
  training::Manifest& manifest_;
  bool other_layout_ = false;
};

}  // namespace

BaseWeightsError ReadCheckpoint(const CheckpointPass& pass, training::Manifest* manifest) {
  return Reader(pass, manifest).Read();
}

}  // namespace capstan::param_store
