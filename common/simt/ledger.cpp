#include "common/simt/ledger.hpp"

#include <algorithm>

namespace flashladder::simt {

const std::vector<Counters::Field>& Counters::fields() {
  static const std::vector<Field> all = {
      {"blocks", &Counters::blocks},
      {"dependent_launches", &Counters::dependent_launches},
      {"flops_cuda_cores", &Counters::flops_cuda_cores},
      {"flops_tensor_cores", &Counters::flops_tensor_cores},
      {"flops_during_copies", &Counters::flops_during_copies},
      {"add", &Counters::add},
      {"mul", &Counters::mul},
      {"div", &Counters::div},
      {"max", &Counters::max},
      {"fma", &Counters::fma},
      {"exp", &Counters::exp},
      {"exp2", &Counters::exp2},
      {"exp_during_wgmmas", &Counters::exp_during_wgmmas},
      {"log", &Counters::log},
      {"barriers", &Counters::barriers},
      {"named_barriers", &Counters::named_barriers},
      {"mbarrier_arrivals", &Counters::mbarrier_arrivals},
      {"mbarrier_waits", &Counters::mbarrier_waits},
      {"syncwarps", &Counters::syncwarps},
      {"shuffles", &Counters::shuffles},
      {"atomics", &Counters::atomics},
      {"async_copies", &Counters::async_copies},
      {"copying_threads", &Counters::copying_threads},
      {"tma_loads", &Counters::tma_loads},
      {"tma_stores", &Counters::tma_stores},
      {"tma_read_bytes", &Counters::tma_read_bytes},
      {"tma_written_bytes", &Counters::tma_written_bytes},
      {"wgmmas", &Counters::wgmmas},
      {"wgmma_waits", &Counters::wgmma_waits},
      {"wgmma_read_bytes", &Counters::wgmma_read_bytes},
      {"wgmma_bytes_in_flight", &Counters::wgmma_bytes_in_flight},
      {"unordered_wgmmas", &Counters::unordered_wgmmas},
      {"bulk_reduces", &Counters::bulk_reduces},
      {"tiles", &Counters::tiles},
      {"masked_tiles", &Counters::masked_tiles},
      {"bytes_in_flight", &Counters::bytes_in_flight},
  };
  return all;
}
static_assert(sizeof(Counters) == 36 * sizeof(std::uint64_t), "a new counter must be listed in fields()");

Counters& Counters::operator+=(const Counters& other) {
  for (const Field& field : fields()) this->*field.member += other.*field.member;
  return *this;
}

std::uint64_t GlobalTraffic::read_elements() const {
  return element_bytes == 0 ? 0 : read_bytes / element_bytes;
}
std::uint64_t GlobalTraffic::written_elements() const {
  return element_bytes == 0 ? 0 : written_bytes / element_bytes;
}
std::uint64_t GlobalTraffic::atomic_elements() const {
  return element_bytes == 0 ? 0 : atomic_bytes / element_bytes;
}

GlobalTraffic& GlobalTraffic::operator+=(const GlobalTraffic& other) {
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
  atomic_bytes += other.atomic_bytes;
  distinct_read_bytes += other.distinct_read_bytes;
  distinct_written_bytes += other.distinct_written_bytes;
  sectors += other.sectors;
  atomic_sectors += other.atomic_sectors;
  ideal_sectors += other.ideal_sectors;
  return *this;
}

SharedTraffic& SharedTraffic::operator+=(const SharedTraffic& other) {
  array_bytes = std::max(array_bytes, other.array_bytes);
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
  wavefronts += other.wavefronts;
  ideal_wavefronts += other.ideal_wavefronts;
  return *this;
}

Busiest& Busiest::operator+=(const Busiest& other) {
  operations += other.operations;
  global += other.global;
  shared += other.shared;
  return *this;
}
void Busiest::raise_to(const Busiest& other) {
  operations = std::max(operations, other.operations);
  global = std::max(global, other.global);
  shared = std::max(shared, other.shared);
}

GlobalTraffic Ledger::global_total() const {
  GlobalTraffic total;
  if (!global.empty()) total.element_bytes = global.begin()->second.element_bytes;
  for (const auto& [name, traffic] : global) {
    if (traffic.element_bytes != total.element_bytes) total.element_bytes = 0;
    total += traffic;
  }
  return total;
}

SharedTraffic Ledger::shared_total() const {
  SharedTraffic total;
  std::uint64_t bytes = 0;
  for (const auto& [name, traffic] : shared) {
    bytes += traffic.array_bytes;
    total += traffic;
  }
  total.array_bytes = bytes;
  return total;
}

void Ledger::note_registers(std::uint64_t most, std::uint64_t fewest) {
  most_registers = std::max(most_registers, most);
  if (fewest != 0 && (fewest_registers == 0 || fewest < fewest_registers)) fewest_registers = fewest;
}

Ledger& Ledger::operator+=(const Ledger& other) {
  Counters::operator+=(other);
  if (kernel != other.kernel) kernel.clear();
  for (const auto& [name, traffic] : other.global) {
    GlobalTraffic& mine = global[name];
    if (mine.element_bytes == 0) mine.element_bytes = traffic.element_bytes;
    mine += traffic;
  }
  for (const auto& [name, traffic] : other.shared) shared[name] += traffic;
  shared_bytes_per_block = std::max(shared_bytes_per_block, other.shared_bytes_per_block);
  most_bytes_in_flight = std::max(most_bytes_in_flight, other.most_bytes_in_flight);
  most_exp_before_product = std::max(most_exp_before_product, other.most_exp_before_product);
  note_registers(other.most_registers, other.fewest_registers);
  device_bytes = std::max(device_bytes, other.device_bytes);
  most_tiles_of_multiprocessor += other.most_tiles_of_multiprocessor;
  busiest += other.busiest;
  banks_analysed = banks_analysed || other.banks_analysed;
  seconds += other.seconds;
  return *this;
}

bool Ledger::operator==(const Ledger& other) const {
  return kernel == other.kernel && entries() == other.entries();
}

std::vector<std::pair<std::string, std::uint64_t>> Ledger::entries() const {
  std::vector<std::pair<std::string, std::uint64_t>> list;
  for (const Field& field : fields()) list.emplace_back(field.name, this->*field.member);
  list.emplace_back("most_bytes_in_flight", most_bytes_in_flight);
  list.emplace_back("most_exp_before_product", most_exp_before_product);
  list.emplace_back("most_tiles_of_multiprocessor", most_tiles_of_multiprocessor);
  list.emplace_back("most_registers", most_registers);
  list.emplace_back("fewest_registers", fewest_registers);
  list.emplace_back("shared_bytes_per_block", shared_bytes_per_block);
  list.emplace_back("device_bytes", device_bytes);
  for (const auto& [name, t] : global) {
    const std::string prefix = "global." + name + ".";
    list.emplace_back(prefix + "read_bytes", t.read_bytes);
    list.emplace_back(prefix + "written_bytes", t.written_bytes);
    list.emplace_back(prefix + "atomic_bytes", t.atomic_bytes);
    list.emplace_back(prefix + "distinct_read_bytes", t.distinct_read_bytes);
    list.emplace_back(prefix + "distinct_written_bytes", t.distinct_written_bytes);
    list.emplace_back(prefix + "sectors", t.sectors);
    list.emplace_back(prefix + "atomic_sectors", t.atomic_sectors);
    list.emplace_back(prefix + "ideal_sectors", t.ideal_sectors);
  }
  for (const auto& [name, t] : shared) {
    const std::string prefix = "shared." + name + ".";
    list.emplace_back(prefix + "array_bytes", t.array_bytes);
    list.emplace_back(prefix + "read_bytes", t.read_bytes);
    list.emplace_back(prefix + "written_bytes", t.written_bytes);
    list.emplace_back(prefix + "wavefronts", t.wavefronts);
    list.emplace_back(prefix + "ideal_wavefronts", t.ideal_wavefronts);
  }
  return list;
}

std::vector<std::pair<std::string, std::uint64_t>> Ledger::counted() const {
  auto list = entries();
  if (banks_analysed) return list;
  std::erase_if(list, [](const auto& entry) {
    const std::string& name = entry.first;
    return name.ends_with("sectors") || name.ends_with("wavefronts") ||
           name.find(".distinct_") != name.npos;
  });
  return list;
}

}  // namespace flashladder::simt
