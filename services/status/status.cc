#include "services/status/status.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace capstan::services {
namespace {

constexpr absl::string_view kTypePrefix = "type.googleapis.com/";
constexpr char kDomain[] = "capstan";

std::string TypeUrl(const google::protobuf::Message& message) {
  return absl::StrCat(kTypePrefix, message.GetTypeName());
}

template <typename Message>
std::optional<Message> GetDetail(const absl::Status& status) {
  Message message;
  const absl::optional<absl::Cord> payload = status.GetPayload(TypeUrl(message));
  if (!payload.has_value() || !message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

absl::Status SetDetail(absl::Status status, const google::protobuf::Message& message) {
  status.SetPayload(TypeUrl(message), absl::Cord(message.SerializeAsString()));
  return status;
}

// Drops field violations from the end, then whole details, until the envelope fits.
void Fit(google::rpc::Status& envelope) {
  while (envelope.ByteSizeLong() > kMaxDetailBytes && envelope.details_size() > 0) {
    auto* details = envelope.mutable_details();
    auto it = std::find_if(details->begin(), details->end(), [](const google::protobuf::Any& any) {
      return any.Is<google::rpc::BadRequest>();
    });
    google::rpc::BadRequest bad;
    if (it == details->end() || !it->UnpackTo(&bad)) {
      details->RemoveLast();
    } else if (bad.field_violations_size() > 1) {
      const int keep = bad.field_violations_size() / 2;
      bad.mutable_field_violations()->DeleteSubrange(keep, bad.field_violations_size() - keep);
      it->PackFrom(bad);
    } else {
      details->erase(it);
    }
  }
}

}  // namespace

std::string CutText(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  if (max_bytes < 3) return std::string(max_bytes, '.');
  size_t end = max_bytes - 3;
  // A continuation byte is 10xxxxxx. Step back to the first byte of its character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = CutText(status.message(), kMaxMessageBytes);
  std::map<std::string, std::string> payloads;  // sorted: equal statuses give equal bytes
  status.ForEachPayload([&payloads](absl::string_view url, const absl::Cord& value) {
    if (absl::StartsWith(url, kTypePrefix)) payloads[std::string(url)] = std::string(value);
  });
  const auto code = static_cast<grpc::StatusCode>(static_cast<int>(status.code()));
  if (payloads.empty()) return grpc::Status(code, message);
  google::rpc::Status envelope;
  envelope.set_code(static_cast<int>(code));
  envelope.set_message(message);
  for (auto& [url, value] : payloads) {
    google::protobuf::Any* any = envelope.add_details();
    any->set_type_url(url);
    any->set_value(std::move(value));
  }
  Fit(envelope);
  return grpc::Status(code, message, envelope.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  const bool canonical = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status result(canonical ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      status.error_message());
  google::rpc::Status envelope;
  const std::string details = status.error_details();
  if (details.empty() || !envelope.ParseFromString(details)) return result;
  for (const google::protobuf::Any& any : envelope.details()) {
    if (absl::StartsWith(any.type_url(), kTypePrefix)) {
      result.SetPayload(any.type_url(), absl::Cord(any.value()));
    }
  }
  return result;
}

absl::Status WithReason(absl::Status status, const ErrorReason& reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason.reason);
  info.set_domain(kDomain);
  for (const auto& [key, value] : reason.metadata) (*info.mutable_metadata())[key] = value;
  return SetDetail(std::move(status), info);
}

absl::Status WithViolations(absl::Status status, const std::vector<FieldViolation>& violations) {
  google::rpc::BadRequest bad;
  for (const FieldViolation& violation : violations) {
    auto* added = bad.add_field_violations();
    added->set_field(violation.field);
    added->set_description(violation.description);
  }
  return SetDetail(std::move(status), bad);
}

std::optional<ErrorReason> GetReason(const absl::Status& status) {
  const auto info = GetDetail<google::rpc::ErrorInfo>(status);
  if (!info.has_value() || info->domain() != kDomain) return std::nullopt;
  ErrorReason reason{.reason = info->reason(), .metadata = {}};
  for (const auto& [key, value] : info->metadata()) reason.metadata[key] = value;
  return reason;
}

std::vector<FieldViolation> GetViolations(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  const auto bad = GetDetail<google::rpc::BadRequest>(status);
  if (!bad.has_value()) return violations;
  for (const auto& violation : bad->field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

}  // namespace capstan::services
