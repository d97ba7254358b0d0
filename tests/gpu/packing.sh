# shellcheck shell=bash
# Sourced by pack and bundle. Packs programs with all shared libraries that they need, to run on a bare machine.
#
# It leaves out the C library's family, which must be the machine's own (glibc 2.36 or later), and all of CUDA, which
# comes with the driver and with Python's wheels.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

libc_family='^(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libutil|libnsl|libanl)\.so'
cuda_family='^lib(cuda|cudart|cudnn[a-z_]*|cublas|cublasLt|nccl|nvrtc[-a-z]*|nvJitLink|nvidia-[a-z]*)\.so'

need_tools() {
  local tool
  for tool in patchelf strip xz ldd; do
    command -v "$tool" >/dev/null || die "needs $tool (Debian: apt-get install patchelf binutils xz-utils)"
  done
}

# known_target BUILD NAME: whether the build has a target of that name.
known_target() { [ -n "$(ninja -C "$1" -t query "$2" 2>/dev/null)" ]; }

# closure FOLDER: copies the libraries that FOLDER/bin/* and FOLDER/lib/* link into FOLDER/lib. Strips all files and lets
# them find each other by $ORIGIN, so LD_LIBRARY_PATH is free for CUDA.
closure() {
  local folder=$1 file name path missing=()
  mkdir -p "$folder/lib"
  while read -r name path; do
    if [[ $name =~ $libc_family || $name =~ $cuda_family ]]; then continue; fi
    if [ "$path" = missing ]; then missing+=("$name"); continue; fi
    [ -e "$folder/lib/$name" ] || cp -L "$path" "$folder/lib/$name"
  done < <(for file in "$folder"/bin/* "$folder"/lib/*; do ldd "$file" 2>/dev/null || true; done |
    awk '$2 == "=>" { print $1, ($3 ~ /^\//) ? $3 : "missing" }' | sort -u)
  [ ${#missing[@]} = 0 ] || die "libraries not found here: ${missing[*]}"
  for file in "$folder"/bin/* "$folder"/lib/*; do
    chmod u+w "$file"
    # shellcheck disable=SC2016  # $ORIGIN is for the loader
    case $file in */bin/*) name='$ORIGIN/../lib' ;; *) name='$ORIGIN' ;; esac
    # A text file among the programs is no error.
    if ! head -c 4 "$file" | grep -q ELF; then continue; fi
    strip --strip-unneeded "$file"
    patchelf --set-rpath "$name" "$file"
  done
}

# archive PARENT NAME OUT LIMIT_MIB: packs PARENT/NAME into OUT (.tar.xz). It is an error if OUT is larger than the limit;
# 0: no limit.
archive() {
  local parent=$1 name=$2 out=$3 limit=$4 bytes
  mkdir -p "$(dirname "$out")"
  tar -C "$parent" --owner=0 --group=0 --sort=name -cf - "$name" | xz -6 -T2 >"$out.part"
  mv "$out.part" "$out"
  bytes=$(stat -c %s "$out")
  say "$out: $((bytes / 1048576)).$((bytes % 1048576 * 10 / 1048576)) MiB, $(find "$parent/$name/lib" -type f | wc -l) libraries"
  if [ "$limit" -gt 0 ] && [ "$bytes" -gt $((limit * 1048576)) ]; then
    die "$out is larger than $limit MiB"
  fi
}
