// CAPSTAN_MUTANT("name"): a bug planted on purpose, so that the tests themselves can be tested.
//
// Constant false, and thus compiled out, in everything that is shipped or tested otherwise. In a
// target compiled with CAPSTAN_MUTANTS (tests/sim: capstan_sim_mutants), the mutant named by
// PlantMutant is true. docs/reliability.md lists the mutants and the test that finds each.
#ifndef CAPSTAN_SERVICES_CHECK_MUTANT_H_
#define CAPSTAN_SERVICES_CHECK_MUTANT_H_

#ifdef CAPSTAN_MUTANTS

#include <cstring>

namespace capstan {

// Set it before the code under test runs. Not thread-safe.
inline const char*& PlantedMutant() {
  static const char* name = "";
  return name;
}
inline void PlantMutant(const char* name) { PlantedMutant() = name; }
inline bool IsPlanted(const char* name) { return std::strcmp(PlantedMutant(), name) == 0; }

}  // namespace capstan

#define CAPSTAN_MUTANT(name) ::capstan::IsPlanted(name)
#else
#define CAPSTAN_MUTANT(name) false
#endif

#endif  // CAPSTAN_SERVICES_CHECK_MUTANT_H_
