#include "coordinator/core/node_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

constexpr int kMaxDevices = 64;
constexpr size_t kMaxHostBytes = 253;
constexpr size_t kMaxAddressBytes = 300;
constexpr size_t kMaxDeviceNameBytes = 63;
constexpr size_t kMaxUuidBytes = 63;
constexpr size_t kMaxNoGpuBytes = 1000;
constexpr size_t kMaxDescriptionBytes = 256;  // of a device
constexpr size_t kMaxVersionBytes = 128;

bool IsHttpUrl(absl::string_view url) {
  if (!absl::ConsumePrefix(&url, "http://") && !absl::ConsumePrefix(&url, "https://")) return false;
  return !url.empty() && url.size() <= kMaxAddressBytes &&
         std::all_of(url.begin(), url.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains(".:-_[]", c);
         });
}

// Takes as long wherever they differ.
bool SameKey(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char differs = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differs = static_cast<unsigned char>(
        differs | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i])));
  }
  return differs == 0;
}

// Whether the process is the one that has the name. A number that everybody sees proves nothing. It has to
// do if neither side ever had a key.
bool IsSameProcess(const Node& old, const node::v1::Register& reg) {
  if (CAPSTAN_MUTANT("name_is_the_process")) return true;
  if (!old.reg().resume_key().empty() || !reg.resume_key().empty()) {
    return SameKey(old.reg().resume_key(), reg.resume_key());
  }
  return reg.last_incarnation() != 0 && reg.last_incarnation() == old.incarnation();
}

}  // namespace

bool IsName(absl::string_view text) {
  if (text.empty() || text.size() > 63) return false;
  for (const char c : text) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-')) return false;
  }
  return true;
}

absl::Status CheckRegister(const node::v1::Register& reg) {
  if (!IsName(reg.name())) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.name: want [a-z0-9-]{1,63}, got ", reg.name().size(), " bytes"));
  }
  if (reg.role() != common::v1::ROLE_WORKER && reg.role() != common::v1::ROLE_PARAM_STORE) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.role: want WORKER or PARAM_STORE, got ", reg.role()));
  }
  if (reg.host().size() > kMaxHostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.host: ", reg.host().size(), " bytes, at most ", kMaxHostBytes));
  }
  if (!reg.http_url().empty() && !IsHttpUrl(reg.http_url())) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.http_url: want http://HOST:PORT or https://HOST:PORT of at most ",
                     kMaxAddressBytes, " bytes, got ", reg.http_url().size()));
  }
  if (reg.no_gpu().size() > kMaxNoGpuBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.no_gpu: ", reg.no_gpu().size(), " bytes, at most ", kMaxNoGpuBytes));
  }
  if (reg.version().size() > kMaxVersionBytes) {
    return absl::InvalidArgumentError(absl::StrCat("register.version: ", reg.version().size(),
                                                   " bytes, at most ", kMaxVersionBytes));
  }
  if (reg.last_incarnation() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.last_incarnation: want >= 0, got ", reg.last_incarnation()));
  }
  if (reg.role() == common::v1::ROLE_WORKER) {
    if (reg.devices().empty() || reg.devices_size() > kMaxDevices) {
      return absl::InvalidArgumentError(absl::StrCat("register.devices: a worker has 1 to ",
                                                     kMaxDevices, ", got ", reg.devices_size()));
    }
    for (const node::v1::Device& device : reg.devices()) {
      if (device.name().empty() || device.name().size() > kMaxDeviceNameBytes) {
        return absl::InvalidArgumentError(
            "register.devices: a device without a name, or a long one");
      }
      if (device.uuid().size() > kMaxUuidBytes) {
        return absl::InvalidArgumentError(absl::StrCat("register.devices: a uuid of ",
                                                       device.uuid().size(), " bytes, at most ",
                                                       kMaxUuidBytes));
      }
      if (device.description().size() > kMaxDescriptionBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("register.devices: the description of ", device.name(), " has ",
                         device.description().size(), " bytes, at most ", kMaxDescriptionBytes));
      }
    }
  } else if (reg.data_address().empty() || reg.data_address().size() > kMaxAddressBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.data_address: a param_store needs one of 1 to ", kMaxAddressBytes,
                     " bytes, got ", reg.data_address().size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeTable::Admission> NodeTable::Judge(const node::v1::Register& reg,
                                                      bool named) const {
  Admission admission;
  const Node* old = Find(reg.name());
  if (old == nullptr) return admission;
  if (!named && !reg.certificate().empty() && !old->reg().certificate().empty() &&
      reg.certificate() != old->reg().certificate()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "register.name: node ", reg.name(), " is of certificate ", old->reg().certificate(),
        ", not of ", reg.certificate(), "; a certificate with the node's name may have it"));
  }
  if (IsSameProcess(*old, reg)) {
    if (reg.role() != old->reg().role() || reg.devices_size() != old->reg().devices_size() ||
        reg.data_address() != old->reg().data_address()) {
      return absl::InvalidArgumentError(absl::StrCat("register: node ", reg.name(),
                                                     " has another role, other devices or another "
                                                     "address than before"));
    }
    admission.same_process = true;
    admission.replaced = old->session();
    return admission;
  }
  if (old->live()) {
    return absl::AlreadyExistsError(absl::StrCat("register.name: a live node on host ", old->host(),
                                                 " has the name ", reg.name()));
  }
  admission.replaced_process = true;
  admission.replaced = old->session();
  return admission;
}

Node& NodeTable::Admit(SessionId session, const node::v1::Register& reg, const Admission& admission,
                       int64_t incarnation, absl::Duration now, absl::Time wall) {
  Node& node = nodes_[reg.name()];
  if (node.session() != 0) sessions_.erase(node.session());
  TakeOffers(node);
  if (!admission.same_process) node.Start(incarnation, reg.devices_size());
  SetRegister(node, reg);
  node.set_drained(drained_.count(reg.name()) > 0);
  node.Connect(session);
  node.Hear(now, wall);
  sessions_[session] = reg.name();
  return node;
}

void NodeTable::AddAbsent(const node::v1::Register& reg, int64_t incarnation, absl::Duration now,
                          absl::Time wall) {
  Node& node = nodes_[reg.name()];
  TakeOffers(node);
  node.Start(incarnation, reg.devices_size());
  SetRegister(node, reg);
  node.set_drained(drained_.count(reg.name()) > 0);
  node.set_unheard(true);
  node.Hear(now, wall);
}

Node* NodeTable::Find(absl::string_view name) {
  const auto it = nodes_.find(std::string(name));
  return it == nodes_.end() ? nullptr : &it->second;
}

const Node* NodeTable::Find(absl::string_view name) const {
  const auto it = nodes_.find(std::string(name));
  return it == nodes_.end() ? nullptr : &it->second;
}

Node* NodeTable::FindSession(SessionId session) {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : Find(it->second);
}

Node* NodeTable::FindFormerSession(SessionId session) {
  for (auto& entry : nodes_) {
    if (entry.second.session() == 0 && entry.second.last_session() == session) return &entry.second;
  }
  return nullptr;
}

Node* NodeTable::FindIncarnation(absl::string_view name, int64_t incarnation) {
  Node* node = Find(name);
  return node != nullptr && node->incarnation() == incarnation ? node : nullptr;
}

const Node* NodeTable::FindIncarnation(absl::string_view name, int64_t incarnation) const {
  const Node* node = Find(name);
  return node != nullptr && node->incarnation() == incarnation ? node : nullptr;
}

void NodeTable::Disconnect(SessionId session) {
  Node* node = FindSession(session);
  if (node != nullptr) node->Disconnect();
  sessions_.erase(session);
}

void NodeTable::Erase(absl::string_view name) {
  Node* node = Find(name);
  if (node == nullptr) return;
  if (node->session() != 0) sessions_.erase(node->session());
  TakeOffers(*node);
  nodes_.erase(std::string(name));
}

const std::set<std::string>* NodeTable::Offering(const std::string& uuid) const {
  const auto it = offers_.find(uuid);
  return it == offers_.end() ? nullptr : &it->second;
}

void NodeTable::SetRegister(Node& node, const node::v1::Register& reg) {
  TakeOffers(node);
  node.SetRegister(reg);
  for (const node::v1::Device& device : reg.devices()) {
    if (!device.uuid().empty()) offers_[device.uuid()].insert(reg.name());
  }
}

void NodeTable::TakeOffers(const Node& node) {
  for (const node::v1::Device& device : node.reg().devices()) {
    const auto it = offers_.find(device.uuid());
    if (it == offers_.end()) continue;
    it->second.erase(node.name());
    if (it->second.empty()) offers_.erase(it);
  }
}

bool NodeTable::SetDrained(const std::string& name, bool drained) {
  if (Node* node = Find(name); node != nullptr) node->set_drained(drained);
  return drained ? drained_.insert(name).second : drained_.erase(name) > 0;
}

}  // namespace capstan::coordinator::core
