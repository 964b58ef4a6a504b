# Aquifer for the CPU, on Debian 12 slim:
#
#     docker build -t aquifer .
#     docker run --rm -v "$PWD:/data" aquifer generate --model /usr/share/aquifer/tiny-opt \
#         --input prompts.jsonl --output results.jsonl
#
# The first stage compiles and makes the Debian package; the image has that and what it depends on.
FROM debian:12-slim AS build
WORKDIR /srv
COPY . aquifer
RUN sh aquifer/packaging/deb.sh "" /srv/packages

FROM debian:12-slim
COPY --from=build /srv/packages /srv/packages
RUN apt-get update \
    && apt-get install -y --no-install-recommends /srv/packages/aquifer_*.deb \
    && rm -rf /var/lib/apt/lists/* /srv/packages
WORKDIR /data
ENTRYPOINT ["aquifer"]
