// The wire contract only grows: what protos/released.txt lists is there unchanged, or reserved by number and name.
//
// The list begins with the version since which this holds. A new field, value or method is added to the list with its commit:
// run this test with CAPSTAN_PRINT_PROTOS=1 and append the lines that it prints, below a line `version X.Y.Z` for each release.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "capstan/common/v1/common.pb.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "capstan/file/v1/file.pb.h"
#include "capstan/job/v1/admin_service.pb.h"
#include "capstan/job/v1/backup_service.pb.h"
#include "capstan/job/v1/checkpoint_service.pb.h"
#include "capstan/job/v1/job_service.pb.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "capstan/node/v1/node.pb.h"
#include "capstan/onnx/v1/onnx.pb.h"
#include "capstan/param_store/v1/param_store.pb.h"

namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

constexpr char kVersion[] = "version ";

std::string TypeOf(const FieldDescriptor& field) {
  if (field.type() == FieldDescriptor::TYPE_MESSAGE) return field.message_type()->full_name();
  if (field.type() == FieldDescriptor::TYPE_ENUM) return field.enum_type()->full_name();
  return field.type_name();
}

std::string ShapeOf(const FieldDescriptor& field) {
  if (field.is_repeated()) return "repeated";
  if (field.real_containing_oneof() != nullptr)
    return "oneof:" + field.real_containing_oneof()->name();
  return field.has_optional_keyword() ? "optional" : "single";
}

void Describe(const Descriptor& message, std::set<std::string>& lines) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    std::ostringstream line;
    line << "field " << message.full_name() << " " << field.number() << " " << field.name() << " "
         << TypeOf(field) << " " << ShapeOf(field);
    lines.insert(line.str());
  }
  for (int i = 0; i < message.reserved_range_count(); ++i) {
    const Descriptor::ReservedRange& range = *message.reserved_range(i);
    for (int number = range.start; number < range.end; ++number)
      lines.insert("reserved " + message.full_name() + " " + std::to_string(number));
  }
  for (int i = 0; i < message.reserved_name_count(); ++i)
    lines.insert("reserved " + message.full_name() + " " + message.reserved_name(i));
  for (int i = 0; i < message.nested_type_count(); ++i) Describe(*message.nested_type(i), lines);
}

std::vector<const FileDescriptor*> Files() {
  return {capstan::common::v1::View::descriptor()->file(),
          capstan::coordinator::v1::DurableJob::descriptor()->file(),
          capstan::file::v1::Grant::descriptor()->file(),
          capstan::job::v1::NodeInfo::descriptor()->file(),
          capstan::job::v1::BackupRequest::descriptor()->file(),
          capstan::job::v1::DeleteCheckpointRequest::descriptor()->file(),
          capstan::job::v1::JobSpec::descriptor()->file(),
          capstan::job::v1::Job::descriptor()->file(),
          capstan::node::v1::Register::descriptor()->file(),
          capstan::onnx::v1::ModelProto::descriptor()->file(),
          capstan::param_store::v1::Frame::descriptor()->file()};
}

std::set<std::string> Present() {
  std::set<std::string> lines;
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->message_type_count(); ++i) Describe(*file->message_type(i), lines);
    for (int i = 0; i < file->enum_type_count(); ++i) {
      const EnumDescriptor& type = *file->enum_type(i);
      for (int k = 0; k < type.value_count(); ++k) {
        lines.insert("value " + type.full_name() + " " + std::to_string(type.value(k)->number()) +
                     " " + type.value(k)->name());
      }
    }
    for (int i = 0; i < file->service_count(); ++i) {
      for (int k = 0; k < file->service(i)->method_count(); ++k) {
        const auto& method = *file->service(i)->method(k);
        lines.insert(
            "rpc " + method.full_name() + " " + (method.client_streaming() ? "stream " : "") +
            method.input_type()->full_name() + " " + (method.server_streaming() ? "stream " : "") +
            method.output_type()->full_name());
      }
    }
  }
  return lines;
}

std::set<std::string> Released() {
  std::set<std::string> lines;
  std::ifstream file(CAPSTAN_RELEASED_TXT);
  EXPECT_TRUE(file.good()) << CAPSTAN_RELEASED_TXT;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.rfind(kVersion, 0) == 0) continue;
    EXPECT_TRUE(lines.insert(line).second) << "twice: " << line;
  }
  return lines;
}

// "field MESSAGE NUMBER NAME ...": gone is fine where number and name are reserved.
bool IsReserved(const std::string& released) {
  std::istringstream words(released);
  std::string kind, message_name, name;
  int number = 0;
  words >> kind >> message_name >> number >> name;
  if (kind != "field") return false;
  const Descriptor* message =
      google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(message_name);
  return message != nullptr && message->IsReservedNumber(number) && message->IsReservedName(name);
}

TEST(ProtoCompatTest, TheListBeginsWithAVersion) {
  std::ifstream file(CAPSTAN_RELEASED_TXT);
  std::string line;
  while (std::getline(file, line) && (line.empty() || line[0] == '#')) {
  }
  EXPECT_THAT(line, testing::MatchesRegex("version [0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST(ProtoCompatTest, WhatWasReleasedIsUnchangedOrReserved) {
  const std::set<std::string> present = Present();
  const std::set<std::string> released = Released();
  EXPECT_GT(released.size(), 200u);
  for (const std::string& line : released) {
    EXPECT_TRUE(present.count(line) > 0 || IsReserved(line)) << "changed or gone: " << line;
  }
}

TEST(ProtoCompatTest, WhatIsNewStandsInTheList) {
  const std::set<std::string> released = Released();
  for (const std::string& line : Present()) {
    if (std::getenv("CAPSTAN_PRINT_PROTOS") != nullptr && released.count(line) == 0)
      std::printf("%s\n", line.c_str());
    EXPECT_TRUE(released.count(line) > 0) << "not in protos/released.txt: " << line;
  }
}

// A number or name that another version may still send must never get another meaning.
TEST(ProtoCompatTest, NumbersOfAMessageAreUsedOnce) {
  std::set<std::pair<std::string, std::string>> keys;  // message, and number or name
  for (const std::string& line : Released()) {
    std::istringstream words(line);
    std::string kind, type, number, name;
    words >> kind >> type >> number >> name;
    if (kind != "field") continue;
    EXPECT_TRUE(keys.emplace(type, number).second) << line;
    EXPECT_TRUE(keys.emplace(type, name).second) << line;
  }
}

TEST(ProtoCompatTest, EnumsBeginWithUnspecified) {
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->enum_type_count(); ++i) {
      EXPECT_THAT(file->enum_type(i)->FindValueByNumber(0)->name(),
                  testing::EndsWith("_UNSPECIFIED"));
    }
  }
}

}  // namespace
