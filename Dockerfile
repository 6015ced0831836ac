# The image of relavium-serve: one static file, nothing else to run in it.
#
#   docker build -t relavium-serve .     builds it in a container (pulls golang)
#   make image                           packs the binary that `make build` made; pulls nothing
#
# The root may be read-only. What has to last is in the volume /var/lib/relavium, which
# is RELAVIUM_HOME; no other folder is written to, /tmp neither. Workflows are looked
# for below /srv/relavium, which the project is mounted at.
ARG GO_VERSION=1.26

# What both ways have in common: see scripts/image.
FROM scratch AS bare
ENV PATH=/usr/bin RELAVIUM_HOME=/var/lib/relavium SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# A number, so that an orchestrator can see that it is not root's.
USER 65532:65532
WORKDIR /srv/relavium
EXPOSE 7411
# Whether it lives; --ready would take a draining server for a sick one.
HEALTHCHECK --interval=10s --timeout=6s --start-period=20s --retries=3 CMD ["/usr/bin/relavium-serve", "health"]
ENTRYPOINT ["/usr/bin/relavium-serve"]
# An address that is not loopback wants --auth, and TLS or --behind-proxy.
CMD ["serve", "--transport", "http", "--listen", "0.0.0.0:7411", "--auth", "token", "--behind-proxy", "--publish", "@mcp_call"]

FROM golang:${GO_VERSION} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /root-of-image/usr/bin/relavium-serve ./cmd/relavium-serve \
 && mkdir -p /root-of-image/etc/ssl/certs \
 && cp /etc/ssl/certs/ca-certificates.crt /root-of-image/etc/ssl/certs/ \
 && mkdir -p -m 0700 /root-of-image/var/lib/relavium

FROM bare
COPY --from=build /root-of-image/usr/ /usr/
COPY --from=build /root-of-image/etc/ /etc/
COPY --from=build --chown=65532:65532 /root-of-image/var/ /var/
VOLUME /var/lib/relavium
