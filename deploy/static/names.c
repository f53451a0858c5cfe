/*
 * Linked into the static binary for Linux: host names are resolved with /etc/hosts and DNS alone.
 *
 * Other sources in /etc/nsswitch.conf, such as `resolve`, `myhostname` and `mdns4_minimal`, are shared libraries. The static C
 * library would load them together with the C library of the system, and the process crashes if their versions differ. The
 * sources named here are part of the C library since its version 2.34.
 */
#include <features.h>
#include <nss.h>

#if !__GLIBC_PREREQ(2, 34)
#error "the static binary needs a C library of version 2.34 or newer"
#endif

__attribute__((constructor)) static void use_built_in_sources(void) {
    __nss_configure_lookup("hosts", "files dns");
    __nss_configure_lookup("passwd", "files");
    __nss_configure_lookup("group", "files");
}
