#!/usr/bin/busybox sh
# The first process of a guest: mounts, modules, the items, and off. What lab says goes to the second serial port; the
# first is the kernel's.
export PATH=/usr/sbin:/usr/bin HOME=/tmp TMPDIR=/tmp
busybox ln -s dash /usr/bin/sh
for applet in $(busybox --list); do
    [ -e "/usr/bin/$applet" ] || [ -e "/usr/sbin/$applet" ] || busybox ln -s busybox "/usr/bin/$applet"
done
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/net
mount -t devpts pts /dev/pts
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/netns /var/run
{
    # shellcheck disable=SC2046
    /usr/sbin/modprobe -a $(cat /etc/modules)
    [ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
    /usr/sbin/ip link set lo up
} >/dev/ttyS0 2>&1
stty -F /dev/ttyS1 raw -echo
# One argument a line.
IFS='
'
# shellcheck disable=SC2046
/usr/bin/setsid /flexcp/lab kernel-items $(cat /etc/flexcp-items) >/dev/ttyS1 2>/dev/ttyS0 </dev/null
poweroff -f
