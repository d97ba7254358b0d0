// manifest.json of a checkpoint: its files, and which job, lineage and step it belongs to.
//
// The manifest is written last and decides what its folder, `<job_id>/<lineage>-<step>/`, contains.
// Threads: pure functions; no file is opened here.
#ifndef CAPSTAN_TRAINING_CODEC_MANIFEST_H_
#define CAPSTAN_TRAINING_CODEC_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::training {

constexpr int64_t kManifestFormatVersion = 2;

struct ManifestFile {
  std::string name;        // letters, digits and ._- only, not beginning with a dot; unique
  int64_t size_bytes = 0;  // >= 0
  std::string sha256;      // 64 lower-case hexadecimal digits
};

struct Manifest {
  std::string job_id;       // not empty
  int64_t lineage = 0;      // >= 0
  int64_t step = 0;         // version of the weights: steps applied so far; >= 0
  std::string spec_digest;  // of the resolved spec; not empty
  // ResolvedSpec.training_digest, hexadecimal. A job continues from this checkpoint only if its own
  // digest is equal.
  std::string training_digest;
  std::vector<ManifestFile> files;
  std::string
      weights_sha256;     // hash of the tensors (WeightsSha256); empty without weights.safetensors
  std::string optimizer;  // name, as in the job file; not empty
  int64_t samples_used = 0;     // since step 0, in this history; >= 0
  std::vector<int64_t> orders;  // ids of the orders applied so far; unique
  std::string lead_snapshot;    // serialized node.v1.LeadSnapshot; in the text as base64
  std::string created_by;       // the version of Capstan that wrote it
};

// The text of manifest.json: one indented object that ends in a newline. Its last key,
// `manifest_sha256`, is the hash of the text that this function gives without that key. So a
// flipped bit cannot turn one step or snapshot into another. InvalidArgument: a rule above is
// broken.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);

// DataLoss, naming `file` and the check: bad JSON, a missing or extra key, another format version,
// a rule above that is broken, values that do not match `manifest_sha256`, or more than 16 MiB.
absl::StatusOr<Manifest> ParseManifest(absl::string_view file, absl::string_view text);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CODEC_MANIFEST_H_
