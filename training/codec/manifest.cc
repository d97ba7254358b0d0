#include "training/codec/manifest.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "training/codec/sha256.h"
#include "training/codec/strict_json.h"

namespace capstan::training {
namespace {

using nlohmann::json;

// Such a name stays inside its folder wherever it is used.
bool IsPlainFileName(absl::string_view name) {
  if (name.empty() || name.size() > 255 || name[0] == '.') return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

// The first broken rule of manifest.h; empty if all hold.
std::string Broken(const Manifest& m) {
  const struct {
    const char* key;
    const std::string& text;
  } texts[] = {{"job_id", m.job_id},
               {"spec_digest", m.spec_digest},
               {"optimizer", m.optimizer},
               {"created_by", m.created_by}};
  for (const auto& field : texts) {
    if (field.text.empty()) return absl::StrCat("'", field.key, "' is empty");
    if (!IsUtf8(field.text)) return absl::StrCat("'", field.key, "' is not UTF-8");
  }
  if (!IsUtf8(m.training_digest)) return "'training_digest' is not UTF-8";
  const struct {
    const char* key;
    int64_t value;
  } numbers[] = {{"lineage", m.lineage}, {"step", m.step}, {"samples_used", m.samples_used}};
  for (const auto& field : numbers) {
    if (field.value < 0) {
      return absl::StrCat("'", field.key, "' is ", field.value, ", want 0 or more");
    }
  }
  if (!m.weights_sha256.empty() && !IsSha256Hex(m.weights_sha256)) {
    return absl::StrCat("'weights_sha256' is ", Quoted(m.weights_sha256),
                        ", want 64 hexadecimal digits or nothing");
  }
  std::set<absl::string_view> names;
  for (const ManifestFile& file : m.files) {
    if (!IsPlainFileName(file.name)) {
      return absl::StrCat("file name ", Quoted(file.name), " is not plain");
    }
    if (!names.insert(file.name).second) {
      return absl::StrCat("file ", Quoted(file.name), " is listed twice");
    }
    if (file.size_bytes < 0) {
      return absl::StrCat("file ", Quoted(file.name), ": size_bytes is ", file.size_bytes);
    }
    if (!IsSha256Hex(file.sha256)) {
      return absl::StrCat("file ", Quoted(file.name), ": sha256 is ", Quoted(file.sha256),
                          ", want 64 hexadecimal digits");
    }
  }
  const std::set<int64_t> orders(m.orders.begin(), m.orders.end());
  if (orders.size() != m.orders.size()) return "an order is listed twice";
  return "";
}

void AppendField(absl::string_view key, absl::string_view value, std::string& out) {
  absl::StrAppend(&out, "  \"", key, "\": ");
  AppendJsonString(value, out);
  out += ",\n";
}

void AppendField(absl::string_view key, int64_t value, std::string& out) {
  absl::StrAppend(&out, "  \"", key, "\": ", value, ",\n");
}

// Reads one field into `to`; keeps the first error.
void Read(absl::string_view file, const json& object, absl::string_view key, int64_t& to,
          absl::Status& status) {
  if (!status.ok()) return;
  absl::StatusOr<int64_t> value = JsonInt64(file, object, key);
  status = value.status();
  if (value.ok()) to = *value;
}

void Read(absl::string_view file, const json& object, absl::string_view key, std::string& to,
          absl::Status& status) {
  if (!status.ok()) return;
  absl::StatusOr<std::string> value = JsonString(file, object, key);
  status = value.status();
  if (value.ok()) to = *std::move(value);
}

absl::Status CheckArray(absl::string_view file, const json& object, const char* key) {
  if (object[key].is_array()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(file, ": '", key, "' is not an array"));
}

// The text except for its closing lines; ends in ",\n".
std::string Body(const Manifest& manifest) {
  std::string out = "{\n";
  AppendField("format_version", kManifestFormatVersion, out);
  AppendField("job_id", manifest.job_id, out);
  AppendField("lineage", manifest.lineage, out);
  AppendField("step", manifest.step, out);
  AppendField("spec_digest", manifest.spec_digest, out);
  AppendField("training_digest", manifest.training_digest, out);
  out += "  \"files\": [";
  for (const ManifestFile& file : manifest.files) {
    absl::StrAppend(&out, &file == manifest.files.data() ? "" : ",", "\n    {\"name\": \"",
                    file.name, "\", \"size_bytes\": ", file.size_bytes, ", \"sha256\": \"",
                    file.sha256, "\"}");
  }
  out += manifest.files.empty() ? "],\n" : "\n  ],\n";
  AppendField("weights_sha256", manifest.weights_sha256, out);
  AppendField("optimizer", manifest.optimizer, out);
  AppendField("samples_used", manifest.samples_used, out);
  absl::StrAppend(&out, "  \"orders\": [", absl::StrJoin(manifest.orders, ", "), "],\n");
  AppendField("lead_snapshot", absl::Base64Escape(manifest.lead_snapshot), out);
  AppendField("created_by", manifest.created_by, out);
  return out;
}

}  // namespace

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest) {
  const std::string broken = Broken(manifest);
  if (!broken.empty()) return absl::InvalidArgumentError(absl::StrCat("manifest: ", broken));
  std::string out = Body(manifest);
  AppendField("manifest_sha256", Sha256Hex(out), out);
  out.replace(out.size() - 2, 2, "\n}\n");  // no comma after the last field
  return out;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view file, absl::string_view text) {
  JsonLimits limits;
  limits.max_bytes = size_t{16} << 20;
  limits.max_depth = 3;  // manifest, files, one file
  limits.max_values = 1'000'000;
  absl::StatusOr<json> root = ParseStrictJson(file, text, limits);
  if (!root.ok()) return root.status();

  // Check the version first, because another version may have other keys.
  if (root->is_object() && root->contains("format_version")) {
    absl::StatusOr<int64_t> version = JsonInt64(file, *root, "format_version");
    if (!version.ok()) return version.status();
    if (*version != kManifestFormatVersion) {
      return absl::DataLossError(
          absl::StrCat(file, ": format_version is ", *version, ", want ", kManifestFormatVersion));
    }
  }
  absl::Status status =
      CheckJsonKeys(file, "the manifest", *root,
                    {"format_version", "job_id", "lineage", "step", "spec_digest", "files",
                     "training_digest", "weights_sha256", "optimizer", "samples_used", "orders",
                     "lead_snapshot", "created_by", "manifest_sha256"});
  if (status.ok()) status = CheckArray(file, *root, "files");
  if (status.ok()) status = CheckArray(file, *root, "orders");

  Manifest manifest;
  std::string snapshot, sha256;
  Read(file, *root, "job_id", manifest.job_id, status);
  Read(file, *root, "lineage", manifest.lineage, status);
  Read(file, *root, "step", manifest.step, status);
  Read(file, *root, "spec_digest", manifest.spec_digest, status);
  Read(file, *root, "training_digest", manifest.training_digest, status);
  Read(file, *root, "weights_sha256", manifest.weights_sha256, status);
  Read(file, *root, "optimizer", manifest.optimizer, status);
  Read(file, *root, "samples_used", manifest.samples_used, status);
  Read(file, *root, "lead_snapshot", snapshot, status);
  Read(file, *root, "created_by", manifest.created_by, status);
  Read(file, *root, "manifest_sha256", sha256, status);
  if (!status.ok()) return status;

  for (const json& item : (*root)["files"]) {
    status = CheckJsonKeys(file, "an entry of 'files'", item, {"name", "size_bytes", "sha256"});
    ManifestFile entry;
    Read(file, item, "name", entry.name, status);
    Read(file, item, "size_bytes", entry.size_bytes, status);
    Read(file, item, "sha256", entry.sha256, status);
    if (!status.ok()) return status;
    manifest.files.push_back(std::move(entry));
  }
  for (const json& item : (*root)["orders"]) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{INT64_MAX}) {
      return absl::DataLossError(absl::StrCat(file, ": 'orders' holds something that is no id"));
    }
    manifest.orders.push_back(item.get<int64_t>());
  }
  if (!absl::Base64Unescape(snapshot, &manifest.lead_snapshot) ||
      absl::Base64Escape(manifest.lead_snapshot) != snapshot) {
    return absl::DataLossError(absl::StrCat(file, ": 'lead_snapshot' is not base64"));
  }
  const std::string broken = Broken(manifest);
  if (!broken.empty()) return absl::DataLossError(absl::StrCat(file, ": ", broken));
  if (Sha256Hex(Body(manifest)) != sha256) {
    return absl::DataLossError(
        absl::StrCat(file, ": the values are not those of 'manifest_sha256'"));
  }
  return manifest;
}

}  // namespace capstan::training
