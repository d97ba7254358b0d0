// Compares the Exchange codec with protobuf on any bytes, cut anywhere, in both directions.
//
// The first byte chooses the direction, the second where the bytes are cut. Besides not crashing:
// what the codec accepts, protobuf accepts with the same meaning; an error is InvalidArgument; what
// was read is the same after it is written and read again; and a walk over a payload loses no byte.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "exchange/wire/frame_codec.h"
#include "services/check/check.h"

namespace {

namespace v1 = capstan::param_store::v1;
namespace wire = capstan::exchange::wire;

std::string Join(wire::Pieces pieces) {
  std::string out;
  for (const absl::string_view piece : pieces) out.append(piece.data(), piece.size());
  return out;
}

v1::Frame* Frame(v1::ExchangeRequest& m) { return m.has_frame() ? m.mutable_frame() : nullptr; }
v1::WeightFrame* Frame(v1::ExchangeResponse& m) {
  return m.has_weights() ? m.mutable_weights() : nullptr;
}

bool HasCheckedFrame(const v1::ExchangeRequest& m) {
  return m.has_frame() && m.frame().has_check();
}
bool HasCheckedFrame(const v1::ExchangeResponse& m) {
  return m.has_weights() && m.weights().has_check();
}

template <typename Message, typename Decode>
void Try(Decode decode, absl::string_view bytes, size_t stride) {
  std::vector<absl::string_view> pieces;
  for (size_t at = 0; at < bytes.size(); at += stride) pieces.push_back(bytes.substr(at, stride));
  pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(pieces.size() / 2), "");
  auto decoded = decode(pieces);
  if (!decoded.ok()) {
    CAPSTAN_CHECK(absl::IsInvalidArgument(decoded.status()));
    CAPSTAN_CHECK(absl::StartsWith(decoded.status().message(), "exchange message: "));
    return;
  }
  CAPSTAN_CHECK(decoded->payload_bytes <= wire::kMaxPayloadBytes);
  CAPSTAN_CHECK(decoded->payload_bytes % sizeof(float) == 0);
  CAPSTAN_CHECK(wire::TotalBytes(decoded->payload) == decoded->payload_bytes);

  Message want;
  CAPSTAN_CHECK(want.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  const std::string payload = Join(decoded->payload);
  (void)decoded->Intact(1);
  // protobuf writes unknown fields after the check, but the check must be the last field.
  const bool checked = decoded->message.has_check() || HasCheckedFrame(decoded->message);
  std::string again = decoded->message.SerializeAsString();
  if (auto* const frame = Frame(decoded->message); frame != nullptr) {
    again = wire::EncodePrefix(*frame, payload.size()) + payload;
    frame->set_payload(payload);
  }
  CAPSTAN_CHECK(decoded->message.SerializeAsString() == want.SerializeAsString());

  // protobuf may write unknown fields after the payload. Our own code never does.
  const absl::string_view whole = again;
  const auto second = decode(absl::MakeConstSpan(&whole, 1));
  CAPSTAN_CHECK(second.ok() || checked);
  CAPSTAN_CHECK(!second.ok() || Join(second->payload) == payload);

  wire::PayloadReader reader(decoded->payload);
  std::vector<absl::string_view> chunk;
  std::string walked;
  for (size_t left = payload.size(); left > 0;) {
    const size_t n = std::min<size_t>(left, 4 * stride);
    CAPSTAN_CHECK(reader.Next(n, &chunk));
    std::vector<float> floats(n / sizeof(float));
    wire::CopyFloats(chunk, absl::MakeSpan(floats));
    walked.append(reinterpret_cast<const char*>(floats.data()), n);
    left -= n;
  }
  CAPSTAN_CHECK(reader.AtEnd() && walked == payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t stride = 1 + data[1] % 64;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[0] % 2 == 0) {
    Try<v1::ExchangeRequest>([](wire::Pieces pieces) { return wire::DecodeRequest(pieces); }, bytes,
                             stride);
  } else {
    Try<v1::ExchangeResponse>([](wire::Pieces pieces) { return wire::DecodeResponse(pieces); },
                              bytes, stride);
  }
  return 0;
}
