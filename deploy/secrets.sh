#!/usr/bin/env bash
# usage: secrets.sh FOLDER HOST
# Makes what deploy/compose.yaml wants as secrets, each once: two database users, the key
# that replicas seal questions with, and a certificate of its own for HOST, to be replaced
# by one of a real authority (certificate and key in one PEM file, as HAProxy wants it).
# What services of other users have to read can be read by others; the folder cannot.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,6s/^# //p' "$0"; exit 2; }
folder=$1 host=$2
umask 077
mkdir -p "$folder"
put() { [ -e "$folder/$1" ] || { cat >"$folder/$1" && chmod 0444 "$folder/$1"; }; }

openssl rand -hex 24 | put owner-password
openssl rand -hex 24 | put service-password
printf 'postgres://relavium_owner:%s@database:5432/relavium?sslmode=disable\n' "$(cat "$folder/owner-password")" | put owner-url
printf 'postgres://relavium:%s@database:5432/relavium?sslmode=disable\n' "$(cat "$folder/service-password")" | put service-url
printf 'k1 %s %s\n' "$(openssl rand -base64 32)" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" | put gates.key
if [ ! -e "$folder/site.pem" ]; then
	openssl req -x509 -newkey rsa:2048 -nodes -days 90 -subj "/CN=$host" -addext "subjectAltName=DNS:$host" \
		-keyout "$folder/site.key.tmp" -out "$folder/site.crt.tmp" 2>/dev/null
	cat "$folder/site.crt.tmp" "$folder/site.key.tmp" | put site.pem
	rm "$folder/site.crt.tmp" "$folder/site.key.tmp"
fi
