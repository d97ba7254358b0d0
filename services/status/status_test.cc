#include "services/status/status.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

namespace capstan::services {
namespace {

TEST(StatusTest, EveryCanonicalCodeKeepsItsNumberAndText) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "push fc.w: 1 elements, want 2");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(wire.error_code(), code);
    EXPECT_EQ(wire.error_message(), "push fc.w: 1 elements, want 2");
    EXPECT_TRUE(wire.error_details().empty());
    EXPECT_EQ(FromGrpcStatus(wire), status);
  }
  EXPECT_EQ(FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(31), "x")).code(),
            absl::StatusCode::kUnknown);
}

TEST(StatusTest, DetailsSurviveTheWire) {
  absl::Status status = absl::InvalidArgumentError("2 errors");
  status = WithReason(status, {.reason = "INVALID_SPEC", .metadata = {{"job", "j7"}}});
  status = WithViolations(status, {{"training.epochs", "got -1, want >= 1"}, {"name", "is empty"}});

  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));

  ASSERT_TRUE(GetReason(back).has_value());
  EXPECT_EQ(GetReason(back)->reason, "INVALID_SPEC");
  EXPECT_EQ(GetReason(back)->metadata.at("job"), "j7");
  ASSERT_EQ(GetViolations(back).size(), 2u);
  EXPECT_EQ(GetViolations(back)[0].field, "training.epochs");
  EXPECT_EQ(GetViolations(back)[1].description, "is empty");
}

// The bytes that other gRPC libraries expect: google.rpc.Status with Any under type.googleapis.com.
TEST(StatusTest, WireFormIsGoogleRpcStatus) {
  const grpc::Status wire = ToGrpcStatus(
      WithReason(absl::NotFoundError("no job j7"), {.reason = "NO_JOB", .metadata = {}}));
  google::rpc::Status envelope;
  ASSERT_TRUE(envelope.ParseFromString(wire.error_details()));
  EXPECT_EQ(envelope.code(), 5);
  EXPECT_EQ(envelope.message(), "no job j7");
  ASSERT_EQ(envelope.details_size(), 1);
  EXPECT_EQ(envelope.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  // reason is field 1, domain field 2, both length-delimited.
  EXPECT_EQ(envelope.details(0).value(),
            "\x0a\x06NO_JOB\x12\x07"
            "capstan");
}

TEST(StatusTest, TooManyViolationsAreCutFromTheEnd) {
  std::vector<FieldViolation> violations;
  for (int i = 0; i < 1000; ++i) violations.push_back({absl::StrCat("field", i), "is wrong"});
  const grpc::Status wire =
      ToGrpcStatus(WithViolations(absl::InvalidArgumentError("1000 errors"), violations));
  EXPECT_LE(wire.error_details().size(), static_cast<size_t>(kMaxDetailBytes));
  const std::vector<FieldViolation> kept = GetViolations(FromGrpcStatus(wire));
  ASSERT_GT(kept.size(), 10u);
  EXPECT_EQ(kept[0].field, "field0");
}

TEST(StatusTest, LongMessageIsCutAtACharacter) {
  EXPECT_EQ(CutText("abcdef", 6), "abcdef");
  EXPECT_EQ(CutText("abcdefg", 6), "abc...");
  EXPECT_EQ(CutText("ab\xC3\xA9"
                    "defg",
                    6),
            "ab...");  // the two bytes of e-acute stay together
  const grpc::Status wire = ToGrpcStatus(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_EQ(wire.error_message().size(), static_cast<size_t>(kMaxMessageBytes));
}

TEST(StatusTest, DamagedOrForeignDetailsAreDropped) {
  const grpc::Status damaged(grpc::StatusCode::INTERNAL, "x", "\xff\xff\xff");
  EXPECT_FALSE(GetReason(FromGrpcStatus(damaged)).has_value());
  absl::Status foreign = absl::InternalError("x");
  google::rpc::ErrorInfo info;
  info.set_domain("elsewhere");
  foreign.SetPayload("type.googleapis.com/google.rpc.ErrorInfo",
                     absl::Cord(info.SerializeAsString()));
  EXPECT_FALSE(GetReason(foreign).has_value());
  EXPECT_TRUE(GetViolations(foreign).empty());
}

}  // namespace
}  // namespace capstan::services
