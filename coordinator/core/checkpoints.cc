#include "coordinator/core/checkpoints.h"

#include <algorithm>
#include <utility>

namespace capstan::coordinator::core {

const SavedManifest* Checkpoints::Last() const {
  for (auto it = all_.rbegin(); it != all_.rend(); ++it) {
    if (!it->refused) return &*it;
  }
  return nullptr;
}

const SavedManifest* Checkpoints::Find(const std::string& id) const {
  for (const SavedManifest& manifest : all_) {
    if (manifest.saved.id() == id) return &manifest;
  }
  return nullptr;
}

void Checkpoints::Add(SavedManifest manifest) {
  uri_ = manifest.saved.uri();
  all_.push_back(std::move(manifest));
}

void Checkpoints::Refuse(const std::string& id) {
  for (SavedManifest& manifest : all_) {
    if (manifest.saved.id() != id) continue;
    manifest.refused = true;
    manifest.saved.set_best(false);
  }
}

void Checkpoints::ForgiveRefusals() {
  for (SavedManifest& manifest : all_) manifest.refused = false;
}

void Checkpoints::Prune(size_t latest, size_t best,
                        const std::function<std::optional<double>(int64_t step)>& metric,
                        const std::function<bool(const std::string& id)>& needed) {
  std::vector<std::pair<double, size_t>> rated;
  for (size_t i = 0; i < all_.size(); ++i) {
    SavedManifest& manifest = all_[i];
    manifest.saved.set_best(false);
    const std::optional<double> its = metric(manifest.saved.step());
    if (its.has_value() && !manifest.refused) rated.emplace_back(*its, i);
  }
  std::sort(rated.rbegin(), rated.rend());  // of equals the newer
  for (size_t i = 0; i < rated.size() && i < best; ++i) {
    all_[rated[i].second].saved.set_best(true);
  }
  size_t newer = 0;
  for (size_t i = all_.size(); i-- > 0;) {
    const SavedManifest& manifest = all_[i];
    const bool keep = !manifest.refused &&
                      (newer < latest || manifest.saved.best() || needed(manifest.saved.id()));
    newer += manifest.refused ? 0 : 1;
    if (!keep) all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Checkpoints::Delete(const std::string& id) {
  const auto its = std::find_if(all_.begin(), all_.end(), [&id](const SavedManifest& manifest) {
    return manifest.saved.id() == id;
  });
  if (its == all_.end()) return;
  deleted_.insert(id);
  all_.erase(its);
  uri_ = all_.empty() ? "" : all_.back().saved.uri();
}

void Checkpoints::Load(std::vector<SavedManifest> all, std::string uri,
                       std::set<std::string> deleted) {
  all_ = std::move(all);
  uri_ = std::move(uri);
  deleted_ = std::move(deleted);
}

}  // namespace capstan::coordinator::core
