"""How Bazel builds a folder of xla_pass: one library of its name, one test per *_test.cc."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")

def room(deps = [], test_deps = [], testonly = False):
    """The targets of the folder whose BUILD file calls this.

    Args:
      deps: libraries of the folders that its files include.
      test_deps: the same of its tests, beside its own library. tests/house/test_cpp_layers.py compares both lists with
        the includes.
      testonly: whether only tests may use the library.
    """
    name = native.package_name().split("/")[-1]
    cc_library(
        name = name,
        testonly = testonly,
        srcs = native.glob(
            ["*.cc"],
            allow_empty = True,
            exclude = ["*_test.cc"],
        ),
        hdrs = native.glob(["*.h"]),
        features = ["layering_check"],
        linkstatic = True,
        strip_include_prefix = "/xla_pass",
        visibility = ["//visibility:public"],
        deps = deps,
    )
    for source in native.glob(["*_test.cc"], allow_empty = True):
        cc_test(
            name = source[:-len(".cc")],
            size = "small",
            srcs = [source],
            features = ["layering_check"],
            deps = [":" + name] + test_deps,
        )
    native.filegroup(
        name = "files",
        srcs = native.glob(["*"]),
        visibility = ["//visibility:public"],
    )
