#!/bin/sh
# A C compiler for macOS: zig's, without the options that only Apple's compiler has.
for argument do
  shift
  case "$argument" in
    --target=* | -mmacosx-version-min=* | -gfull) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "$ZIG_PYTHON" -m ziglang cc -target aarch64-macos "$@"
