// Gives every field of a message its own value other than the default, so that a test finds fields
// that a hand-written conversion forgets.
#ifndef CAPSTAN_TESTS_SUPPORT_FILL_MESSAGE_H_
#define CAPSTAN_TESTS_SUPPORT_FILL_MESSAGE_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace capstan {

// Scalars become growing numbers and texts, and enums their second value. A repeated field gets two
// entries. Of a oneof, the last member is set. `next` is the first number to use, and afterwards
// the next free one.
inline void FillMessage(google::protobuf::Message& message, int64_t& next) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& to = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    const bool repeated = field->is_repeated();
    for (int entry = 0; entry < (repeated ? 2 : 1); ++entry) {
      const int64_t value = next++;
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32: {
          const auto number = static_cast<int32_t>(value);
          repeated ? to.AddInt32(&message, field, number) : to.SetInt32(&message, field, number);
          break;
        }
        case FieldDescriptor::CPPTYPE_UINT32: {
          const auto number = static_cast<uint32_t>(value);
          repeated ? to.AddUInt32(&message, field, number) : to.SetUInt32(&message, field, number);
          break;
        }
        case FieldDescriptor::CPPTYPE_INT64:
          repeated ? to.AddInt64(&message, field, value) : to.SetInt64(&message, field, value);
          break;
        case FieldDescriptor::CPPTYPE_UINT64: {
          const auto number = static_cast<uint64_t>(value);
          repeated ? to.AddUInt64(&message, field, number) : to.SetUInt64(&message, field, number);
          break;
        }
        case FieldDescriptor::CPPTYPE_DOUBLE: {
          const double number = static_cast<double>(value) + 0.5;
          repeated ? to.AddDouble(&message, field, number) : to.SetDouble(&message, field, number);
          break;
        }
        case FieldDescriptor::CPPTYPE_FLOAT: {
          const float number = static_cast<float>(value) + 0.5f;
          repeated ? to.AddFloat(&message, field, number) : to.SetFloat(&message, field, number);
          break;
        }
        case FieldDescriptor::CPPTYPE_BOOL:
          repeated ? to.AddBool(&message, field, true) : to.SetBool(&message, field, true);
          break;
        case FieldDescriptor::CPPTYPE_ENUM: {
          const auto* const second = field->enum_type()->value(1);
          repeated ? to.AddEnum(&message, field, second) : to.SetEnum(&message, field, second);
          break;
        }
        case FieldDescriptor::CPPTYPE_STRING: {
          const std::string text = absl::StrCat("text ", value);
          repeated ? to.AddString(&message, field, text) : to.SetString(&message, field, text);
          break;
        }
        case FieldDescriptor::CPPTYPE_MESSAGE:
          FillMessage(
              repeated ? *to.AddMessage(&message, field) : *to.MutableMessage(&message, field),
              next);
          break;
      }
    }
  }
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_SUPPORT_FILL_MESSAGE_H_
