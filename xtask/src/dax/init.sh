#!/bin/sh
# First process of the guest: loads the drivers, mounts the volume, runs the program once.
mount -t proc p /proc
mount -t sysfs s /sys
mount -t devtmpfs d /dev
for m in libnvdimm nfit nd_btt nd_pmem; do
  insmod /lib/modules/$m.ko || echo "BROKEN driver $m"
done
for word in $(cat /proc/cmdline); do
  case $word in t_*) eval "$word" ;; esac
done
i=0
while [ ! -b /dev/pmem0 ] && [ $i -lt 50 ]; do
  sleep 0.1
  i=$((i + 1))
done
# the file system's own journal is written late: what is there was put there by the program
mount -t ext4 -o "$t_mount,commit=300" /dev/pmem0 /mnt || echo "BROKEN volume"
journal "$t_act" /mnt/journal
echo "ENDED $?"
sleep 100000
